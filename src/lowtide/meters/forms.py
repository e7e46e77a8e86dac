"""What power models compute: curves that are added up, a line, boosted trees, a small network.

Each form is plain lists and numbers, so that it can be kept as JSON, and computes in plain Python.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol


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
