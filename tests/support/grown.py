"""Programs whose growth with their size is made up by chance, and how right bands are about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.library.scaling import Scaling, Sized, fit_scaling
from lowtide.profile import PowerProfile

# Sizes that may be measured or asked for, by how many quantities tell them: epochs alone, or epochs
# and GPUs.
SIZES = {
    1: [(size,) for size in (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)],
    2: list(product((2.0, 4.0, 8.0, 16.0), (1.0, 2.0, 4.0, 8.0))),
}


def told(size: tuple[float, ...], duration_s: float, power_w: float) -> Sized:
    """Runs of a size of which only what they came to matters."""
    learned = SimpleNamespace(profile=PowerProfile.constant(power_w, duration_s), epochs=None)
    return Sized(name=f"{size}", size=size, learned=learned)  # type: ignore[arg-type]


def draw_growth(rng: np.random.Generator, quantities: int) -> Callable[..., float]:
    """Return how long a program takes by its size: most of these are no law that is tried."""
    a, b, c = rng.uniform(5, 60), rng.uniform(5, 40), rng.uniform(0.5, 10)
    e, f = rng.uniform(0.7, 1.6), rng.uniform(0.4, 1.0)
    kinds: dict[int, tuple[Callable[..., float], ...]] = {
        1: (
            lambda n: a + b * n,
            lambda n: a + 8 * b / n,
            lambda n: a * n**e,
            lambda n: a + b * n**e,
            lambda n: a + 8 * b / n + 0.4 * b * n,
        ),
        2: (
            lambda n, g: a + n * (b / g + c),
            lambda n, g: a + b * n + 10 * c / g,
            lambda n, g: a * n**e / g**f,
            lambda n, g: a + n * (b / g + 0.05 * b * g),
            lambda n, g: a + b * n**e / g**f,
        ),
    }
    return kinds[quantities][int(rng.integers(len(kinds[quantities])))]


@dataclass(slots=True)
class Judgements:
    """How right bands were, within what was measured and beyond.

    Attributes:
        held: The share that bands held, design by design: what was chosen badly is off together.
        off: How far off each value was.
        refused: How many designs tell nothing, and why.
        scalings: What was found.
    """

    held: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    off: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    half: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    refused: list[str] = field(default_factory=list)
    scalings: list[Scaling] = field(default_factory=list)


def judge_sizes(count: int, quantities: int, seeds: Iterable[int]) -> Judgements:
    """Measure so many sizes of made-up programs, to 1 %, and ask for all the others."""
    found, sizes = Judgements(), SIZES[quantities]
    for seed in seeds:
        rng = np.random.default_rng([count, quantities, seed])
        lasts_s, slope_w = draw_growth(rng, quantities), rng.uniform(50, 300)
        places = rng.permutation(len(sizes))
        noise = 1 + 0.01 * rng.standard_normal((count, 2))

        def draws_w(size: tuple[float, ...], slope_w: float = slope_w) -> float:
            return 100 + slope_w * size[-1]

        parts = [
            told(size, lasts_s(*size) * by[0], draws_w(size) * by[1])
            for size, by in zip((sizes[place] for place in places[:count]), noise, strict=True)
        ]
        try:
            scaling = fit_scaling(["epochs", "gpus"][:quantities], parts)
        except InvalidInput as error:
            found.refused.append(str(error))
            continue
        found.scalings.append(scaling)
        own: dict[bool, list[bool]] = {False: [], True: []}
        for size in (sizes[place] for place in places[count:]):
            right_s, beyond = lasts_s(*size), scaling.beyond(size) > 0
            rights = (right_s, right_s * draws_w(size))
            for law, right in zip((scaling.duration_s, scaling.energy_j), rights, strict=True):
                # A law that would come to less than nothing is refused.
                if law.value(size) > 0:
                    said = scaling.foretell(law, size)
                    own[beyond].append(said.low <= right <= said.high)
                    found.off[beyond].append(abs(said.value / right - 1))
                    found.half[beyond].append((said.high - said.low) / 2 / said.value)
        for beyond, held in own.items():
            found.held[beyond] += [float(np.mean(held))] if held else []
    return found
