"""Signals in plain tables: a column of times and one of intensities, prices or PUE.

Lines `# key: value` above the heading may state kind, basis, zone, source, synthetic and
step_s; `render` writes them, so that a signal survives the round trip. A column `mark` tells steps
that were filled in or estimated.
"""

from __future__ import annotations

import re

from lowtide.errors import Argument, FormatError, InvalidUnit
from lowtide.formats.signals import READ_KINDS, Series, Wish
from lowtide.formats.source import Source
from lowtide.formats.table_reader import Sheet, estimates_marked
from lowtide.formats.times import instants
from lowtide.signal import BASES, ESTIMATED, FILLED, Signal
from lowtide.units import format_iso, intensity_factor, price_factor

_TIMES = frozenset(
    ("datetime", "date_time", "time", "timestamp", "date", "start", "start_time", "point_time")
)
_MARKS = frozenset(("mark", "estimated", "imputed", "is_estimated", "isestimated"))
_INTENSITY_UNIT = re.compile(
    r"(?<![a-z])(kg|g|t|lbs?)[ _-]?(?:co2)?[ _-]?(?:eq|e)?[ _]?(?:/|per)[ _]?([km]wh)"
)
# Anything per energy: a unit, whether it is known or not.
_ANY_UNIT = re.compile(r"[a-z0-9€£]+[ _]?(?:/|per)[ _]?(?:[kmgt]?wh|[kmgt]?j)\b")
_PRICE_UNIT = re.compile(r"(?<![a-z])([a-z]{3}|[€£])[ _]?(?:/|per)[ _]?([km])wh")
_CURRENCIES = {"€": "EUR", "£": "GBP"}


def recognises(source: Source) -> bool:
    """Return whether there is a heading with a column of times."""
    sheet = Sheet.of(source)
    return sheet is not None and any(_is_time(heading) for heading in sheet.headings)


def series(source: Source, wish: Wish) -> Series:
    """Find times, values and labels."""
    sheet = Sheet.of(source)
    if sheet is None:
        raise FormatError("not a table: the first line has no headings", path=source.path, line=1)
    heading = _value_heading(sheet, wish)
    family = _family(heading)
    stated_kind = sheet.notes.get("kind") or _stated_kind(heading, family)
    if stated_kind is not None and stated_kind not in READ_KINDS:
        raise FormatError(
            f"the note 'kind' is one of {', '.join(READ_KINDS)}, not {stated_kind!r}",
            path=source.path,
        )
    kind = wish.agree("kind", stated_kind, source.path)
    unit = _unit(sheet, heading, kind or family, wish)
    if kind is None:
        kind = "price" if family is None and _is_price(unit) else "average"
    basis = None
    if kind in ("average", "marginal"):
        stated = sheet.notes.get("basis") or _stated_basis(heading)
        if stated is not None and stated not in BASES:
            raise FormatError(
                f"the note 'basis' is one of {', '.join(BASES)}, not {stated!r}", path=source.path
            )
        basis = wish.agree("basis", stated, source.path) or "lifecycle"
    when = next((name for name in sheet.headings if _is_time(name) and name != heading), None)
    if when is None:
        raise FormatError(
            "there is no column of times: call one of them 'datetime'", path=source.path
        )
    estimates = [name for name in sheet.headings if _plain(name) in _MARKS][:1]
    (stamps, *marks), (values,) = sheet.read(texts=[when, *estimates], numbers=[heading])
    return Series(
        times=instants(stamps, sheet.place(when), tz=wish.tz or _zone_in(when)),
        values=values,
        place=sheet.place(heading),
        unit=unit,
        kind=kind,
        basis=basis,
        zone=wish.agree("zone", sheet.notes.get("zone"), source.path),
        source=sheet.notes.get("source", f"table, {source.path.name}"),
        synthetic=sheet.notes.get("synthetic", "false").lower() == "true",
        marks=estimates_marked(marks[0]) if marks else None,
        step_s=_note_number(sheet, "step_s"),
        assumed=kind in ("average", "marginal")
        and wish.unit is None
        and _unit_in(heading, "intensity") is None,
    )


def render(signal: Signal) -> str:
    """Return a signal as a table that `series` reads back.

    >>> curve = Signal.from_values([300], start=0, step_s="1h", zone="DE", source="by hand")
    >>> print(render(curve), end="")
    # kind: average
    # basis: lifecycle
    # zone: DE
    # source: by hand
    # step_s: 3600.0
    datetime,carbon_intensity_g_per_kwh
    1970-01-01T00:00:00Z,300.0
    """
    notes = {
        "kind": signal.kind,
        "basis": signal.basis,
        "zone": signal.zone,
        "source": signal.source,
        "synthetic": "true" if signal.synthetic else None,
        "step_s": signal.step_s,
    }
    lines = [f"# {key}: {' '.join(str(said).split())}" for key, said in notes.items() if said]
    if signal.kind == "price":
        heading = f"price_{signal.unit.replace('/', '_per_').lower()}"
    elif signal.kind == "pue":
        heading = "pue"
    elif signal.kind == "power":
        heading = "power_w"
    elif signal.kind == "nodes":
        heading = "nodes"
    else:
        heading = "carbon_intensity_g_per_kwh"
    lines.append(f"datetime,{heading}" if signal.marks is None else f"datetime,{heading},mark")
    rows = [
        f"{format_iso(start)},{value!r}"
        for start, value in zip(signal.edges.tolist(), signal.values.tolist(), strict=False)
    ]
    if signal.marks is not None:
        words = {0: "", FILLED: "filled", ESTIMATED: "estimated"}
        rows = [
            f"{row},{words[mark]}" for row, mark in zip(rows, signal.marks.tolist(), strict=True)
        ]
    lines += rows
    return "\n".join(lines) + "\n"


def _plain(heading: str) -> str:
    return heading.lower().replace("₂", "2").strip()


def _is_time(heading: str) -> bool:
    plain = re.sub(r"[ _]?\(?\b(utc|gmt)\b\)?[ _]?", "", _plain(heading).replace("_utc", " utc"))
    return plain.strip() in _TIMES


def _zone_in(heading: str) -> str | None:
    return "UTC" if "utc" in _plain(heading) else None


def _family(heading: str) -> str | None:
    plain = _plain(heading)
    if plain == "pue":
        return "pue"
    if re.fullmatch(r"power([ _]cap)?[ _]w", plain):
        return "power"
    if plain == "nodes":
        return "nodes"
    if "price" in plain:
        return "price"
    if re.search(r"intensity|co2|moer", plain):
        return "intensity"
    return None


def _stated_kind(heading: str, family: str | None) -> str | None:
    if family in ("pue", "price", "power", "nodes"):
        return family
    plain = _plain(heading)
    if re.search(r"marginal|moer", plain):
        return "marginal"
    return "average" if "average" in plain else None


def _stated_basis(heading: str) -> str | None:
    plain = _plain(heading)
    if re.search(r"\blca\b|life[ _-]?cycle", plain):
        return "lifecycle"
    return "direct" if "direct" in plain else None


def _value_heading(sheet: Sheet, wish: Wish) -> str:
    if wish.column is not None:
        return sheet.find(wish.column)
    family = {"average": "intensity", "marginal": "intensity"}.get(wish.kind or "", wish.kind)
    found = [
        heading
        for heading in sheet.headings
        if (family is not None and _family(heading) == family)
        # A cap or a capacity is read where one is asked for: they stand beside carbon in many.
        or (family is None and _family(heading) not in (None, "power", "nodes"))
    ]
    if len(found) > 1 and wish.kind is not None:
        # Of a pair, one for each kind, the one that says it is of this kind is meant, or else
        # those that do not say.
        said = {heading: _stated_kind(heading, _family(heading)) for heading in found}
        found = (
            [heading for heading in found if said[heading] == wish.kind]
            or [heading for heading in found if said[heading] is None]
            or found
        )
    if len(found) > 1:
        # Of a pair, one for each basis, the lifecycle column is the default.
        basis = wish.basis or "lifecycle"
        found = [heading for heading in found if _stated_basis(heading) == basis] or found
    if len(found) == 1:
        return found[0]
    trouble = f"{len(found)} columns could be meant" if found else "no column is known to be meant"
    raise FormatError(
        f"{trouble} for the {wish.kind or 'intensity or price'}: "
        f"say column= with one of {', '.join(found or sheet.headings)}",
        path=sheet.source.path,
        arguments=(Argument("column"),),
    )


def _unit(sheet: Sheet, heading: str, meaning: str | None, wish: Wish) -> str:
    if meaning in ("pue", "power", "nodes"):
        return "W" if meaning == "power" else "1"
    place = sheet.place(heading)
    stated = _unit_in(heading, meaning)
    if stated is not None:
        try:
            factor = price_factor(stated) if meaning == "price" else intensity_factor(stated)
            asked = wish.unit and (
                price_factor(wish.unit) if meaning == "price" else intensity_factor(wish.unit)
            )
        except InvalidUnit as error:
            raise place.error(str(error)) from None
        if asked and asked != factor:
            given, unit = Argument("unit", wish.unit), Argument("unit")
            raise place.error(
                f"the heading says {stated}, and {given} was asked for: leave out {unit}",
                None,
                given,
                unit,
            )
        return stated
    if wish.unit is not None:
        return wish.unit
    strange = _ANY_UNIT.search(_plain(heading).replace("_per_", "/"))
    if strange is not None:
        raise place.error(
            f"the heading's unit {strange[0]!r} is not known: say unit= with one of g/kWh, kg/MWh, "
            "t/MWh, lb/MWh after converting the values, or a currency per kWh or MWh",
            None,
            Argument("unit"),
        )
    if meaning == "price":
        unit = Argument("unit", "EUR/MWh")
        raise place.error(
            f"a price needs a unit: say {unit}, or write it in the heading", None, unit
        )
    if meaning is None:
        needed = (Argument("kind"), Argument("unit"))
        example = (Argument("kind", "price"), Argument("unit", "EUR/MWh"))
        raise place.error(
            f"the heading does not say what this is: say {needed[0]} and {needed[1]}, e.g. "
            f"{example[0]}, {example[1]}",
            None,
            *needed,
            *example,
        )
    return "g/kWh"


def _unit_in(heading: str, meaning: str | None) -> str | None:
    plain = _plain(heading)
    if meaning == "price":
        match = _PRICE_UNIT.search(plain)
        if match is None:
            return None
        currency = _CURRENCIES.get(match[1], match[1].upper())
        return f"{currency}/{match[2].replace('m', 'M')}Wh"
    match = _INTENSITY_UNIT.search(plain)
    return None if match is None else f"{match[1]}/{match[2]}"


def _is_price(unit: str) -> bool:
    try:
        price_factor(unit)
    except InvalidUnit:
        return False
    return True


def _note_number(sheet: Sheet, key: str) -> float | None:
    said = sheet.notes.get(key)
    if said is None:
        return None
    try:
        number = float(said)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise FormatError(
            f"the note {key!r} is a number of 0 or more, not {said!r}", path=sheet.source.path
        )
    return number
