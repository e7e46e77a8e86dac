// Charts are made for a wide page; on a narrow one they are laid out anew rather than shrunk.
// The widest fill the page, others are only made narrower.
const full = 600, narrow = 560, axis = 90;

function wrapped(text, letters) {
  const lines = Array.isArray(text) ? text : text === undefined ? [] : [text];
  const line = new RegExp(`.{1,${Math.floor(letters)}}(?:\\s|$)`, "g");
  return lines.flatMap(each => each.match(line) || [each]);
}

function parts(chart) {
  return [chart.layer, chart.vconcat, chart.hconcat, chart.concat, [chart.spec]]
    .flatMap(each => each || []).filter(each => each);
}

function fit(chart, room) {
  if (chart.title) {
    const title = typeof chart.title === "object" && !Array.isArray(chart.title)
      ? chart.title : {text: chart.title};
    chart.title = {...title, text: wrapped(title.text, room / 9)};
    if (title.subtitle) chart.title.subtitle = wrapped(title.subtitle, room / 7.5);
  }
  if (typeof chart.width === "number") {
    chart.width = chart.width >= full ? room : Math.min(chart.width, room);
  }
  parts(chart).forEach(part => fit(part, room));
}

function fitted(chart, room) {
  const alone = !(chart.vconcat || chart.hconcat || chart.concat || chart.facet);
  fit(chart, Math.max(room - axis, 200));
  if (chart.facet) {
    chart.columns = room < narrow ? 1 : Math.max(chart.columns || 1, 1);
    chart.spec.width = Math.max((room - axis) / chart.columns - 20, 160);
  }
  if (alone && chart.width >= room - axis) chart.width = "container";
  chart.config.background = "transparent";
  if (room < narrow) chart.config.legend.columns = 2;
  return chart;
}

const actions = {export: true, source: false, compiled: false, editor: false};
document.querySelectorAll(".chart").forEach((place, number) => {
  const chart = fitted(charts[number], place.clientWidth);
  vegaEmbed(place, chart, {renderer: "svg", actions});
});
