"""Read a job trace and ask what a day of patience would have saved."""

from pathlib import Path
from tempfile import TemporaryDirectory

import lowtide as lt

TRACE = """arrival_time,length,cpus,status
0,7200,16,COMPLETED
1800,0,4,CANCELLED
3600,21600,64,COMPLETED
30000,3600,8,COMPLETED
72000,14400,32,TIMEOUT
"""

with TemporaryDirectory() as name:
    path = Path(name) / "jobs.csv"
    path.write_text(TRACE)
    trace = lt.read_jobs(path, start="2024-07-01T06:00Z")

ran = trace.select((trace.length_s > 0) & (trace.cpus > 0))
print(f"{len(ran)} of {len(trace)} jobs ran")
grid = lt.synthetic_grid("sunny", days=4, seed=0)
for wait in ("0h", "6h", "24h"):
    jobs = ran.jobs(power_w_per_cpu=8.0, wait=wait)
    plans = [lt.plan(job, grid) for job in jobs]
    before = sum(each.baseline.carbon_g or 0.0 for each in plans)
    after = sum(each.footprint.carbon_g or 0.0 for each in plans)
    print(f"wait {wait:>3}: {after:7.1f} g instead of {before:.1f} g")
