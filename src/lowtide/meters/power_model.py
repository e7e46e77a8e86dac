"""Power models: watts as a function of how busy a machine is, with what they may be trusted for.

`lowtide model` makes them, and this is all that is needed to use one: a JSON file
and plain Python. A model computes by one of several forms: curves that are added up, a line,
boosted trees, a small network. Each is plain lists and numbers, so that it can be kept as JSON.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from lowtide.errors import FormatError, InvalidInput
from lowtide.files import read_text, write_whole


class Form(Protocol):
    """What a model computes."""

    def watts(self, values: Sequence[float]) -> float:
        """Return the power at a use.

        Args:
            values: One per feature of the model, in its order.
        """
        ...

    def document(self) -> dict[str, Any]:
        """Return the form as plain lists and numbers."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Watts over one feature, straight between points and level beyond the outer ones.

    Attributes:
        feature: Which feature, counted from 0.
        at: Values of the feature, rising.
        power_w: Watts at each.
    """

    feature: int
    at: tuple[float, ...]
    power_w: tuple[float, ...]

    def watts(self, value: float) -> float:
        """Return the watts at a value of the feature."""
        right = bisect_right(self.at, value)
        if right == 0:
            return self.power_w[0]
        if right == len(self.at):
            return self.power_w[-1]
        low, high = self.at[right - 1], self.at[right]
        low_w, high_w = self.power_w[right - 1], self.power_w[right]
        return low_w + (high_w - low_w) * ((value - low) / (high - low))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Curves that are added up.

    Attributes:
        base_w: What is drawn besides.
        curves: The curves.
    """

    base_w: float
    curves: tuple[Curve, ...]

    def watts(self, values: Sequence[float]) -> float:
        """Return the power at a use.

        Args:
            values: One per feature.
        """
        return self.base_w + sum(each.watts(values[each.feature]) for each in self.curves)

    def document(self) -> dict[str, Any]:
        """Return the form as plain lists and numbers."""
        return {
            "kind": "curves",
            "base_w": self.base_w,
            "curves": [
                {"feature": each.feature, "at": list(each.at), "power_w": list(each.power_w)}
                for each in self.curves
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Watts that rise in proportion to each feature.

    Attributes:
        base_w: What is drawn at no use.
        per_unit_w: Watts per unit of each feature.
    """

    base_w: float
    per_unit_w: tuple[float, ...]

    def watts(self, values: Sequence[float]) -> float:
        """Return the power at a use.

        Args:
            values: One per feature.
        """
        pairs = zip(self.per_unit_w, values, strict=True)
        return self.base_w + sum(each * value for each, value in pairs)

    def document(self) -> dict[str, Any]:
        """Return the form as plain lists and numbers."""
        return {"kind": "linear", "base_w": self.base_w, "per_unit_w": list(self.per_unit_w)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A tree of questions as arrays; node 0 is the first, children come behind their parent.

    Attributes:
        feature: Which feature each node asks for; -1 for a leaf.
        threshold: A value up to this goes left.
        left: The node on the left.
        right: The node on the right.
        power_w: Watts of each leaf.
    """

    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    power_w: tuple[float, ...]

    def watts(self, values: Sequence[float]) -> float:
        """Return the watts of the leaf that a use leads to.

        Args:
            values: One per feature.
        """
        node = 0
        while (feature := self.feature[node]) >= 0:
            goes_left = values[feature] <= self.threshold[node]
            node = self.left[node] if goes_left else self.right[node]
        return self.power_w[node]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """Trees that are added up.

    Attributes:
        base_w: What is drawn besides.
        trees: The trees.
    """

    base_w: float
    trees: tuple[Tree, ...]

    def watts(self, values: Sequence[float]) -> float:
        """Return the power at a use.

        Args:
            values: One per feature.
        """
        return self.base_w + sum(tree.watts(values) for tree in self.trees)

    def document(self) -> dict[str, Any]:
        """Return the form as plain lists and numbers."""
        fields = ("feature", "threshold", "left", "right", "power_w")
        return {
            "kind": "trees",
            "base_w": self.base_w,
            "trees": [{name: list(getattr(tree, name)) for name in fields} for tree in self.trees],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network of hyperbolic tangents with a linear end.

    Attributes:
        centre: What is taken off each feature first.
        scale: What each is then divided by.
        weights: For each layer, a row of weights per input.
        biases: For each layer, one per output.
        base_w: Watts at an output of 0.
        scale_w: Watts per unit of the output.
    """

    centre: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[tuple[tuple[float, ...], ...], ...]
    biases: tuple[tuple[float, ...], ...]
    base_w: float
    scale_w: float

    def watts(self, values: Sequence[float]) -> float:
        """Return the power at a use.

        Args:
            values: One per feature.
        """
        trio = zip(values, self.centre, self.scale, strict=True)
        signals = [(value - centre) / scale for value, centre, scale in trio]
        last = len(self.weights) - 1
        for number, (rows, biases) in enumerate(zip(self.weights, self.biases, strict=True)):
            sums = [
                bias + sum(signal * row[place] for signal, row in zip(signals, rows, strict=True))
                for place, bias in enumerate(biases)
            ]
            signals = sums if number == last else [math.tanh(each) for each in sums]
        return self.base_w + self.scale_w * signals[0]

    def document(self) -> dict[str, Any]:
        """Return the form as plain lists and numbers."""
        return {
            "kind": "network",
            "centre": list(self.centre),
            "scale": list(self.scale),
            "weights": [[list(row) for row in rows] for rows in self.weights],
            "biases": [list(each) for each in self.biases],
            "base_w": self.base_w,
            "scale_w": self.scale_w,
        }


def read_form(document: Mapping[str, Any], features: int) -> Form:
    """Return a form, or raise ValueError where it could not be computed.

    Args:
        document: What `Form.document` returned.
    """
    kind = document["kind"]
    if kind == "curves":
        return Curves(
            base_w=float(document["base_w"]),
            curves=tuple(_curve(each, features) for each in document["curves"]),
        )
    if kind == "linear":
        form = Linear(base_w=float(document["base_w"]), per_unit_w=_floats(document["per_unit_w"]))
        _require(len(form.per_unit_w) == features, "one weight per feature")
        return form
    if kind == "trees":
        return Trees(
            base_w=float(document["base_w"]),
            trees=tuple(_tree(each, features) for each in document["trees"]),
        )
    _require(kind == "network", f"an unknown kind {kind!r}")
    return _network(document, features)


def _curve(document: Mapping[str, Any], features: int) -> Curve:
    curve = Curve(
        feature=int(document["feature"]),
        at=_floats(document["at"]),
        power_w=_floats(document["power_w"]),
    )
    _require(0 <= curve.feature < features, "a curve over a feature there is")
    _require(len(curve.at) == len(curve.power_w) > 0, "one power per point")
    _require(all(low < high for low, high in pairwise(curve.at)), "points that rise")
    return curve


def _tree(document: Mapping[str, Any], features: int) -> Tree:
    tree = Tree(
        feature=tuple(int(each) for each in document["feature"]),
        threshold=_floats(document["threshold"]),
        left=tuple(int(each) for each in document["left"]),
        right=tuple(int(each) for each in document["right"]),
        power_w=_floats(document["power_w"]),
    )
    nodes = len(tree.feature)
    same = {len(tree.threshold), len(tree.left), len(tree.right), len(tree.power_w)}
    _require(nodes > 0 and same == {nodes}, "arrays of one length")
    _require(
        all(-1 <= each < features for each in tree.feature), "questions for features there are"
    )
    # Children that stand behind their parent make sure that every way ends.
    _require(
        all(
            node < tree.left[node] < nodes and node < tree.right[node] < nodes
            for node in range(nodes)
            if tree.feature[node] >= 0
        ),
        "children behind their parent",
    )
    return tree


def _network(document: Mapping[str, Any], features: int) -> Network:
    network = Network(
        centre=_floats(document["centre"]),
        scale=_floats(document["scale"]),
        weights=tuple(tuple(_floats(row) for row in rows) for rows in document["weights"]),
        biases=tuple(_floats(each) for each in document["biases"]),
        base_w=float(document["base_w"]),
        scale_w=float(document["scale_w"]),
    )
    _require(len(network.weights) == len(network.biases) > 0, "layers")
    _require(len(network.centre) == len(network.scale) == features, "one scale per feature")
    _require(all(each != 0 for each in network.scale), "scales other than 0")
    inputs = features
    for rows, biases in zip(network.weights, network.biases, strict=True):
        fits = len(rows) == inputs and all(len(row) == len(biases) for row in rows)
        _require(fits, "layers that fit together")
        inputs = len(biases)
    _require(inputs == 1, "one output")
    return network


def _floats(values: Sequence[float]) -> tuple[float, ...]:
    numbers = tuple(float(each) for each in values)
    _require(all(math.isfinite(each) for each in numbers), "finite numbers")
    return numbers


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"it needs {what}")


FORMAT = "lowtide utilisation model"
VERSION = 1

# Watts per hardware thread of a machine of unknown make, idle and at full load: the medians of the
# seven server micro-architectures (Haswell to Cascade Lake, EPYC 1 to 3) of the Cloud Carbon
# Footprint coefficients, which come from SPECpower results. Their maxima go from 1.6 to 6.0 W, and
# how far off they are on another machine nobody has checked: all made from it says "estimated".
_IDLE_W = 0.64
_BUSY_W = 3.54
# Use this far beyond what was seen, as a share of its span, is rounding and not another load.
_SLACK = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One thing that a model goes by.

    Attributes:
        name: What it is called; the meter reads those of `usage.FEATURES`.
        low: The least that the model has seen of it.
        high: The most.
    """

    name: str
    low: float
    high: float

    def beyond(self, value: float) -> float:
        """Return how far a value lies outside of what was seen, in spans of that."""
        off = max(self.low - value, value - self.high, 0.0)
        return off / (self.high - self.low) if self.high > self.low else float(off > 0)

    def trouble(self, value: float) -> str:
        """Return in words how a value lies outside of what was seen, empty where it does not."""
        slack = _SLACK * (self.high - self.low)
        if self.low - slack <= value <= self.high + slack:
            return ""
        side = "above" if value > self.high else "below"
        return (
            f"{self.name} is {side} the {self.low:.4g} to {self.high:.4g} that the model was "
            "learned from, and what it says there is a guess"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """How far off a model is, found on runs that it was not learned from.

    Attributes:
        half_w: Watts to either side, whatever the use.
        level: How often the truth lies within.
        runs: How many runs it was found on.
        at_w: What the model says where `halves_w` are the watts to either side, rising; empty where
            it was not found out how that depends on use.
        halves_w: Watts to either side at each of them; straight in between, level beyond.
        span_w: From the least power that was seen to the most: by so much it widens for each span
            of a feature that use lies beyond what was seen, where the model stays as it is at the
            edge. NaN for one that goes on beyond, of which nothing is known there.
    """

    half_w: float
    level: float
    runs: int
    at_w: tuple[float, ...] = ()
    halves_w: tuple[float, ...] = ()
    span_w: float = math.nan

    def half_at(self, power_w: float, beyond: float = 0.0) -> float:
        """Return the watts to either side of what a model says.

        Args:
            beyond: How far use lies outside of what was seen, in spans of its features.
        """
        half_w = self.half_w
        if self.at_w:
            half_w = Curve(feature=0, at=self.at_w, power_w=self.halves_w).watts(power_w)
        return half_w + beyond * self.span_w if beyond else half_w

    def document(self) -> dict[str, Any]:
        """Return the band as plain lists and numbers."""
        said: dict[str, Any] = {"half_w": self.half_w, "level": self.level, "runs": self.runs}
        if self.at_w:
            said |= {"at_w": list(self.at_w), "halves_w": list(self.halves_w)}
        return said if math.isnan(self.span_w) else {**said, "span_w": self.span_w}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Band:
        """Return what a document says, or raise ValueError where it makes no sense."""
        band = cls(
            half_w=float(document["half_w"]),
            level=float(document["level"]),
            runs=int(document["runs"]),
            at_w=_floats(document.get("at_w", ())),
            halves_w=_floats(document.get("halves_w", ())),
            span_w=float(document.get("span_w", math.nan)),
        )
        _require(len(band.at_w) == len(band.halves_w), "one half-width per point")
        _require(all(low < high for low, high in pairwise(band.at_w)), "points that rise")
        _require(all(each >= 0 for each in band.halves_w), "half-widths of 0 or more")
        return band


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """What a model says.

    Attributes:
        power_w: The watts.
        low_w: The lower end of its interval, which widens outside of what the model was learned
            from; NaN where there is none.
        high_w: The upper end.
        outside: In words, which features lie outside of what the model was learned from.
    """

    power_w: float
    low_w: float
    high_w: float
    outside: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilisationModel:
    """A machine's power as a function of how busy it is.

    Attributes:
        features: What it goes by.
        form: What it computes.
        source: Where it comes from, in words.
        band: How far off it is; None where nobody has found out.
        average_s: The seconds that use is averaged over; 0 for whatever time there is.
        about: More about how it was made, for readers.

    >>> model = UtilisationModel.points([0.0, 0.5, 1.0], [50.0, 150.0, 180.0], source="by hand")
    >>> model.at({"cpu": 0.25}).power_w
    100.0
    """

    features: tuple[Feature, ...]
    form: Form
    source: str
    band: Band | None = None
    average_s: float = 0.0
    about: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def generic(cls, cpus: int) -> UtilisationModel:
        """Return a model of a machine of which only the number of CPUs is known."""
        watts = (_IDLE_W * cpus, _BUSY_W * cpus)
        return cls.points((0.0, 1.0), watts, source=f"generic, {cpus} CPUs")

    @classmethod
    def points(
        cls, share: Sequence[float], power_w: Sequence[float], *, source: str
    ) -> UtilisationModel:
        """Return a model that is straight between points of CPU use.

        Args:
            share: Shares of CPU time, from 0 to 1, rising.
        """
        at = tuple(float(each) for each in share)
        watts = tuple(float(each) for each in power_w)
        rising = all(low < high for low, high in pairwise(at))
        if len(at) != len(watts) or len(at) < 2 or not rising or at[0] < 0 or at[-1] > 1:
            raise InvalidInput(
                "a table of loads has two or more, rising within 0 and 1, with one power for each"
            )
        return cls(
            features=(Feature(name="cpu", low=at[0], high=at[-1]),),
            form=Curves(base_w=0.0, curves=(Curve(feature=0, at=at, power_w=watts),)),
            source=source,
        )

    def at(self, use: Mapping[str, float]) -> Estimated:
        """Return the power at a use; NaN where a feature is not known."""
        values = [use.get(feature.name, math.nan) for feature in self.features]
        if any(math.isnan(value) for value in values):
            return Estimated(power_w=math.nan, low_w=math.nan, high_w=math.nan, outside=())
        pairs = list(zip(self.features, values, strict=True))
        outside = tuple(said for feature, value in pairs if (said := feature.trouble(value)))
        half_w = beyond = math.nan
        if self.band is not None and not math.isnan(self.band.span_w):
            # Beyond what was seen a model may say anything: it stays what it is at the edge.
            values = [min(max(value, feature.low), feature.high) for feature, value in pairs]
            beyond = sum(feature.beyond(value) for feature, value in pairs) if outside else 0.0
        elif not outside:
            beyond = 0.0
        # Nothing draws less than no power, though a line or a network may say so.
        watts = max(self.form.watts(values), 0.0)
        if self.band is not None:
            half_w = self.band.half_at(watts, beyond)
        return Estimated(
            power_w=watts,
            low_w=max(watts - half_w, 0.0) if half_w == half_w else math.nan,
            high_w=watts + half_w,
            outside=outside,
        )

    def document(self) -> dict[str, Any]:
        """Return the model as plain lists and numbers."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "source": self.source,
            "features": [
                {"name": each.name, "low": each.low, "high": each.high} for each in self.features
            ],
            "average_s": self.average_s,
            "band": None if self.band is None else self.band.document(),
            "about": dict(self.about),
            "form": self.form.document(),
        }

    def dump(self, path: Path | str) -> None:
        """Write the model; the same model is the same bytes.

        Args:
            path: A file ending in `.json`.
        """
        path = Path(path)
        if path.suffix != ".json":
            raise InvalidInput(f"a utilisation model is a .json file, not {path.name!r}")
        lines = [
            f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False, allow_nan=False)}"
            for key, value in self.document().items()
        ]
        write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")

    @classmethod
    def load(cls, path: Path | str) -> UtilisationModel:
        """Read a model that `lowtide model` saved.

        Args:
            path: The JSON file.
        """
        try:
            document = json.loads(read_text(path))
        except (ValueError, RecursionError) as error:
            raise FormatError(f"this is no JSON ({error})", path=path) from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise FormatError(
                "this is no utilisation model: make one with lowtide model, from "
                "recordings or with --table from loads and watts",
                path=path,
            )
        if document.get("version") != VERSION:
            raise FormatError(
                f"this model has version {document.get('version')}, and this lowtide reads "
                f"{VERSION}",
                path=path,
            )
        try:
            band = document["band"]
            features = tuple(
                Feature(name=str(each["name"]), low=float(each["low"]), high=float(each["high"]))
                for each in document["features"]
            )
            return cls(
                features=features,
                form=read_form(document["form"], len(features)),
                source=str(document["source"]),
                band=None if band is None else Band.of(band),
                average_s=float(document["average_s"]),
                about=dict(document["about"]),
            )
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise FormatError(
                f"this utilisation model is damaged ({error}): learn it again", path=path
            ) from None
