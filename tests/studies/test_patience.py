"""What patience is worth, against planning for each length of waiting by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lowtide.job import Job
from lowtide.policies import plan
from lowtide.profile import Phase, PowerProfile
from lowtide.signal import Signal
from lowtide.studies.comparison import starts_by_patience


@pytest.mark.parametrize("seed", range(12))
def test_the_best_start_is_that_of_a_job_with_that_deadline(seed: int) -> None:
    rng = np.random.default_rng(seed)
    phases = [
        Phase(name=str(place), duration_s=float(rng.integers(60, 9000)), power_w=float(watts))
        for place, watts in enumerate(rng.integers(0, 500, size=int(rng.integers(1, 5))))
    ]
    profile = PowerProfile(startup=phases[:-1], work=[*phases, replace(phases[0], power_w=90.0)])
    # Few different values, so that starts tie.
    signal = Signal.from_values(rng.integers(1, 6, 200) * 50.0, start=0, step_s="30m")
    job = Job(id="a", arrival=1234.0, deadline=signal.end - 5000.0, profile=profile)
    options = starts_by_patience(job, signal)
    assert options[0].patience_s == 0
    for option in options:
        alone = replace(job, deadline=job.arrival + profile.run_s + option.patience_s)
        best = plan(alone, signal, policy="oracle")
        assert option.plan.schedule.start == pytest.approx(best.schedule.start, abs=1e-6)
        assert option.plan.footprint.carbon_g == pytest.approx(best.footprint.carbon_g, rel=1e-12)
        assert option.plan.lower_bound == pytest.approx(best.footprint.carbon_g, rel=1e-12)
        assert option.plan.saving == pytest.approx(best.saving, abs=1e-12)
