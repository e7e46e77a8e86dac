"""Read a signal and a profile from files, plan a job, and keep the schedule."""

from pathlib import Path
from tempfile import TemporaryDirectory

import lowtide as lt

SIGNAL = """datetime,carbon_intensity_g_per_kwh
2024-07-01T00:00Z,400
2024-07-01T01:00Z,200
2024-07-01T02:00Z,300
2024-07-01T03:00Z,100
2024-07-01T04:00Z,500
2024-07-01T05:00Z,300
"""
PROFILE = """startup = [{ name = "load", duration_s = 1800, power_w = 200 }]
work = [
  { name = "prepare", duration_s = 1800, power_w = 400, checkpoint = true },
  { name = "solve", duration_s = 5400, power_w = 1000 },
]
"""

with TemporaryDirectory() as name:
    folder = Path(name)
    (folder / "signal.csv").write_text(SIGNAL)
    (folder / "job.toml").write_text(PROFILE)
    signal = lt.read_signal(folder / "signal.csv")
    profile = lt.PowerProfile.load(folder / "job.toml")
    job = lt.Job(id="1", arrival=signal.start, deadline="+6h", profile=profile)
    best = lt.plan(job, signal)
    best.schedule.dump(folder / "schedule.json")
    print(best)
    print(lt.Schedule.load(folder / "schedule.json"))
