"""Power models: watts as a function of how busy a machine is, with what they may be trusted for.

`lowtide learn --utilisation` makes them, and this is all that is needed to use one: a JSON file
and plain Python.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from lowtide.errors import FormatError, InvalidInput
from lowtide.files import read_text, write_whole
from lowtide.meters.forms import Curve, Curves, Form, read_form

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
        half_w: Watts to either side.
        level: How often the truth lies within.
        runs: How many runs it was found on.
    """

    half_w: float
    level: float
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """What a model says.

    Attributes:
        power_w: The watts.
        low_w: The lower end of its interval; NaN where there is none, as there is none outside of
            what the model was learned from.
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
        # Nothing draws less than no power, though a line or a network may say so.
        watts = max(self.form.watts(values), 0.0)
        pairs = zip(self.features, values, strict=True)
        outside = tuple(said for feature, value in pairs if (said := feature.trouble(value)))
        # How far off it is was found within what it was learned from, and holds nowhere else.
        half_w = math.nan if self.band is None or outside else self.band.half_w
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
            "band": None
            if self.band is None
            else {
                "half_w": self.band.half_w,
                "level": self.band.level,
                "runs": self.band.runs,
            },
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
        """Read a model that `lowtide learn --utilisation` saved.

        Args:
            path: The JSON file.
        """
        try:
            document = json.loads(read_text(path))
        except (ValueError, RecursionError) as error:
            raise FormatError(f"this is no JSON ({error})", path=path) from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise FormatError(
                "this is no utilisation model: make one with lowtide learn --utilisation, from "
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
                band=None
                if band is None
                else Band(
                    half_w=float(band["half_w"]),
                    level=float(band["level"]),
                    runs=int(band["runs"]),
                ),
                average_s=float(document["average_s"]),
                about=dict(document["about"]),
            )
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise FormatError(
                f"this utilisation model is damaged ({error}): learn it again", path=path
            ) from None
