"""Damaged files of every format that people hand in: each is read, or refused in words."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lowtide.formats import jobs, read_jobs, read_signal, signals
from lowtide.formats.model_tables import read_load_table, read_usage
from lowtide.formats.recording_writer import write_recording
from lowtide.formats.recordings import read_recordings
from lowtide.formats.sonar import read_ticks
from lowtide.meters.power_model import UtilisationModel
from lowtide.profile import PowerProfile
from lowtide.recording import Event, Recording, Run
from lowtide.schedule import Schedule
from lowtide.stress.plan import LoadPlan, make_plan
from lowtide.studies.experiment import Experiment
from support.damage import Target, assert_read_or_refused, assert_sound


def _signal(name: str, **how: str) -> Callable[[Path], Any]:
    def read(path: Path) -> None:
        told = {"format": name} if path.stat().st_size % 4 else {}
        read_signal(path, **told, **how)

    return read


def _jobs(name: str) -> Callable[[Path], Any]:
    def read(path: Path) -> None:
        told = {"format": name, "time_unit": "s"} if path.stat().st_size % 4 else {}
        read_jobs(path, **told)

    return read


def _pm100() -> bytes:
    moments = [datetime(2020, 5, 1, hour, tzinfo=UTC) for hour in (1, 2)]
    buffer = io.BytesIO()
    pl.DataFrame(
        {
            "job_id": [1, 2],
            "submit_time": moments,
            "start_time": moments,
            "run_time": [60, 80],
            "num_cores_alloc": [4, 8],
            "node_power_consumption": [[100.0, 200.0, 200.0], [300.0] * 4],
        }
    ).write_parquet(buffer, compression="uncompressed")
    return buffer.getvalue()


def _folder_of(path: Path) -> None:
    read_recordings(path.parent)


def _sound_folder(folder: Path) -> None:
    run = Run(id="r", times=[0.0, 1, 2], power_w=[5.0, 6, 7], events=[Event(time=1, label="a")])
    write_recording(Recording(runs=(run,)), folder / "recording")


HOURS = [f"2024-07-01T{hour:02}:00" for hour in range(4)]
PHASES = (
    'startup = [ { name = "a", duration_s = 10, power_w = 80.5 } ]\n'
    'work = [ { repeat = 3, phases = [ { name = "b", duration_s = "30m", power_w = 600, '
    'checkpoint = true } ] } ]\nsuspended_power_w = 3\nabout = "x"\n'
)
TARGETS = {
    "signal:table": Target(
        seeds=(
            "datetime,carbon_intensity_g_per_kwh\n"
            + "".join(f"{hour}Z,{300 + i}\n" for i, hour in enumerate(HOURS)),
            "# kind: price\n# step_s: 3600\ntime;price_eur_per_mwh;mark\n"
            + "".join(f"{hour}+02:00;{i - 2.5};filled\n" for i, hour in enumerate(HOURS)),
            "timestamp,carbon_intensity\n"
            + "".join(f"{1_700_000_000 + 900 * i},{300 + i}\n" for i in range(5)),
        ),
        name="a.csv",
        read=_signal("table", tz="Europe/Berlin", gaps="hold"),
    ),
    "signal:electricitymaps": Target(
        seeds=(
            "Datetime (UTC),Country,Zone name,Zone id,Carbon intensity gCO₂eq/kWh (direct),"
            "Carbon intensity gCO₂eq/kWh (Life cycle),Carbon-free energy percentage (CFE%),"
            "Renewable energy percentage (RE%),Data source,Data estimated,"
            "Data estimation method\n"
            + "".join(
                f"{hour.replace('T', ' ')}:00,Germany,Germany,DE,{300 + i},{350 + i},40,40,x,"
                "false,\n"
                for i, hour in enumerate(HOURS)
            ),
            json.dumps(
                {
                    "zone": "DE",
                    "history": [
                        {
                            "zone": "DE",
                            "carbonIntensity": 300 + i,
                            "datetime": f"{hour}:00.000Z",
                            "emissionFactorType": "lifecycle",
                            "isEstimated": False,
                        }
                        for i, hour in enumerate(HOURS)
                    ],
                }
            ),
        ),
        name="a.csv",
        read=_signal("electricitymaps", gaps="hold"),
    ),
    "signal:gb": Target(
        seeds=(
            json.dumps(
                {
                    "data": [
                        {
                            "from": f"{a}Z",
                            "to": f"{b}Z",
                            "intensity": {"forecast": 200 + i, "actual": 210, "index": "low"},
                        }
                        for i, (a, b) in enumerate(pairwise(HOURS))
                    ]
                }
            ),
        ),
        name="a.json",
        read=_signal("gb", gaps="interpolate"),
    ),
    "signal:watttime": Target(
        seeds=(
            json.dumps(
                {
                    "data": [
                        {"point_time": f"{hour}:00+00:00", "value": 870.5 + i}
                        for i, hour in enumerate(HOURS)
                    ],
                    "meta": {"region": "X", "signal_type": "co2_moer", "units": "lbs_co2_per_mwh"},
                }
            ),
        ),
        name="a.json",
        read=_signal("watttime", gaps="hold"),
    ),
    "jobs:csv": Target(
        seeds=(
            "arrival_time,length,cpus,gpus,status,user,requested\n"
            + "".join(f"{100 * i},{600 + i},{1 + i % 4},0,completed,ann,7200\n" for i in range(5)),
            "arrival_time,length,cpus,id,power_w,deadline,wait,waited,interruptible,profile,after,mood\n"
            "2024-07-01T00:00Z,100,1,a,50,2024-07-02T00:00Z,,5,never,h200,,x\n"
            '2024-07-01T01:00Z,100,1,b,,,60,,anywhere,"{""work"": [{""name"": ""a"", '
            '""duration_s"": 5, ""power_w"": 7}]}",a,y\n',
        ),
        name="a.csv",
        read=_jobs("csv"),
    ),
    "jobs:sacct": Target(
        seeds=(
            "JobIDRaw|JobID|User|Submit|Start|End|ElapsedRaw|TimelimitRaw|State|NNodes|NCPUS|ReqMem|"
            "AllocTRES|TotalCPU|MaxRSS|ConsumedEnergyRaw|JobName\n"
            "10|10|ann|1000|1060|1660|600|60|COMPLETED|2|8|4G|billing=8,cpu=8,gres/gpu:a100=2|"
            "00:00:00||900000|a|b\n"
            "10.batch|10.batch||1060|1060|1660|600||COMPLETED|1|4|||01:00.500|2048K|0|batch\n"
            "11|11_4|bob|1100|1200|Unknown|100|UNLIMITED|"
            "CANCELLED by 1|1|1|2000Mc|cpu=1|1-00:00:07||18446744073709551614|x\n",
        ),
        name="a.txt",
        read=_jobs("sacct"),
    ),
    "jobs:swf": Target(
        seeds=(
            "; UnixStartTime: 1700000000\n; MaxNodes: 4\n"
            + "".join(
                f"{i} {100 * i} 5 {600 + i} 4 300 1024 4 7200 2048 1 1 1 -1 1 1 -1 -1\n"
                for i in range(1, 5)
            ),
        ),
        name="a.swf",
        read=_jobs("swf"),
    ),
    "jobs:azure": Target(
        seeds=(
            "".join(
                f"vm{i},sub,dep,{300 * i},{900 * i},99.5,{i}.25,80,Unknown,{cores},8\n"
                for i, cores in enumerate(("2", ">24", "4"))
            ),
        ),
        name="a.csv",
        read=_jobs("azure"),
    ),
    "jobs:pai": Target(
        seeds=(
            "".join(
                f"job{i % 2},worker{i},{i}.0,Terminated,{100 * i}.0,{900 * i}.0,600,29.3,50,V100\n"
                for i in range(1, 5)
            ),
        ),
        name="a.csv",
        read=_jobs("pai"),
    ),
    "jobs:google": Target(
        seeds=(
            "".join(
                json.dumps(
                    {
                        "time": str(700_000_000 * (kind + 1)),
                        "type": str(kind),
                        "collection_id": "381",
                        "instance_index": "0",
                        "priority": "103",
                        "resource_request": {"cpus": 0.25, "memory": 0.1},
                        "start_after_collection_ids": ["17"],
                    }
                )
                + "\n"
                for kind in (0, 3, 6)
            ),
            "time,type,collection_id,user,resource_request\n700,SUBMIT,5,a,\"{'cpus': 0.5}\"\n"
            "900,SCHEDULE,5,a,\n9000,FINISH,5,a,\n",
        ),
        name="a.json",
        read=_jobs("google"),
    ),
    "jobs:philly": Target(
        seeds=(
            json.dumps(
                [
                    {
                        "status": "Pass",
                        "vc": "ee9e8c",
                        "jobid": f"application_{i}",
                        "attempts": [
                            {
                                "start_time": "2017-10-07 01:12:09",
                                "end_time": "2017-10-07 01:13:23",
                                "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}],
                            }
                        ],
                        "submitted_time": "2017-10-07 01:11:39",
                        "user": "ce2f4c",
                    }
                    for i in range(2)
                ]
            ),
        ),
        name="a.json",
        read=_jobs("philly"),
    ),
    "jobs:pm100": Target(
        seeds=(_pm100(),),
        name="a.parquet",
        read=_jobs("pm100"),
    ),
    "jobs:carbs": Target(
        seeds=(
            "arrival_time|length|cpus|type|args\n0|3600|1|constant|250\n"
            "5|3600|1|phases|[{'name': 'a', 'duration': 3600, 'power': 59.9}]\n"
            "9|7200|2|periodic-phases|{'startup': [], 'work': [{'duration': 60, 'power': 9}]}\n",
        ),
        name="a.csv",
        read=_jobs("carbs"),
    ),
    "recording:pinpoint": Target(
        seeds=(
            "\n".join(["50000"] * 12 + ["90000"] * 16 + ["50000"] * 12)
            + "\n1720910400.0\n1720910430.0\n---\n1720910412.5, work\n1720910420.0, Exit\n",
        ),
        name="job_full/measurements.csv",
        second="job_full/events.csv",
        read=_folder_of,
    ),
    "recording:tables": Target(
        seeds=(
            "time,power_w,cpu,run\n"
            + "".join(f"{100 + i / 10},{50 + i},0.5,full_0\n" for i in range(20))
            + "---\ntime,run,event,checkpoint\n100.5,full_0,begin,\n101.5,full_0,saved,yes\n",
            "time,energy_uj,max_energy_range_uj\n"
            + "".join(f"{i / 10},{(9_900_000 + 5e4 * i) % 1e7:.0f},10000000\n" for i in range(20)),
        ),
        name="t_samples.csv",
        second="t_events.csv",
        read=read_recordings,
    ),
    "recording:folder": Target(
        seeds=(
            json.dumps(
                {
                    "format": "lowtide recording",
                    "version": 1,
                    "runs": [
                        {
                            "id": "r", "kind": "full", "pair": None, "start": 0.0, "end": 3.0,
                            "power": "measured", "meters": ["m"], "machine": {"cpus": 2},
                            "exit_status": 0, "notes": [], "silent": [[0.0, 0.1]], "counted": [],
                        }
                    ],
                }
            )
            + "\n---\ntime,run,event,checkpoint\n1.0,r,a,0\n2.0,r,b_saved,1\n",
        ),
        name="recording/manifest.json",
        second="recording/events.csv",
        begin=_sound_folder,
        read=_folder_of,
    ),
    "usage table": Target(
        seeds=("time,cpu,gpu\n" + "".join(f"{i},0.{i},{i}\n" for i in range(6)),),
        name="a.csv",
        read=read_usage,
    ),
    "load table": Target(
        seeds=("# source: x\nload,watts\n0,50\n50 %,120\n100 %,200\n",),
        name="a.csv",
        read=read_load_table,
    ),
    "profile:toml": Target(seeds=(PHASES,), name="a.toml", read=PowerProfile.load),
    "profile:json": Target(
        seeds=(
            json.dumps(
                {
                    "work": [
                        {"name": "b", "duration_s": 60.0, "power_w": 5, "checkpoint": True},
                        {"repeat": 2, "phases": [{"name": "c", "duration_s": 9, "power_w": 1}]},
                    ],
                    "stop": [],
                }
            ),
        ),
        name="a.json",
        read=PowerProfile.load,
    ),
    "schedule": Target(
        seeds=(
            json.dumps(
                {
                    "job_id": "a",
                    "spans": [
                        {"kind": "startup", "start": 0.0, "duration_s": 10.0, "progress_s": 0.0},
                        {"kind": "work", "start": 10.0, "duration_s": 60.0, "progress_s": 0.0},
                    ],
                }
            ),
        ),
        name="a.json",
        read=Schedule.load,
    ),
    "experiment": Target(
        seeds=(
            '[grid]\nsynthetic = "windy"\n[workload]\nprofile = "h200"\n'
            'arrivals = { every = "6h" }\njobs = 4\nwait = "12h"\n[policy]\nname = "exact"\n'
            '[sweep]\n"policy.name" = ["exact", "run_now"]\n',
        ),
        name="a.toml",
        read=Experiment.load,
    ),
    "load plan": Target(
        seeds=(make_plan("ramp", {"cpu": (0, 100)}, duration="2s", seed=1).toml(),),
        name="a.toml",
        read=LoadPlan.load,
    ),
    "utilisation model": Target(
        seeds=(
            json.dumps(
                UtilisationModel.points([0.0, 0.5, 1.0], [50.0, 90.0, 99.0], source="x").document()
            ),
        ),
        name="a.json",
        read=UtilisationModel.load,
    ),
    "sonar": Target(
        seeds=(
            "".join(
                f"v=0.13.0,time=2024-03-01T10:{5 * i:02}:00+01:00,host=n1,user=ann,cmd=md,job=7,"
                f'pid=70,cputime_sec={100 * i},rssanonkib=2048,cores=8,"gpus=0,1",gpu%=150\n'
                for i in range(3)
            ),
            "".join(
                f"2024-03-01T10:0{i}:00.5+00:00,n1,8,ann,7,md,250.5,2048,1010,150,30,1024\n"
                for i in range(3)
            ),
            json.dumps(
                {
                    "data": {
                        "type": "sample",
                        "attributes": {
                            "time": "2024-03-01T10:00:00Z",
                            "node": "n1",
                            "system": {"used_memory": 5, "cpus": [1, 2]},
                            "jobs": [
                                {
                                    "job": 7, "user": "ann", "epoch": 0,
                                    "processes": [{"pid": 1, "cmd": "x", "cpu_time": 5}],
                                }
                            ],
                        },
                    },
                    "meta": {"producer": "sonar", "version": "0.16.0"},
                }
            ),
        ),
        name="a.csv",
        read=lambda path: list(read_ticks([path])),
    ),
}  # fmt: skip


def test_every_registered_format_is_damaged() -> None:
    for name in signals.FORMATS.names():
        assert f"signal:{name}" in TARGETS
    for name in jobs.FORMATS.names():
        assert f"jobs:{name}" in TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_sound_files_are_read(name: str, tmp_path: Path) -> None:
    assert_sound(tmp_path, TARGETS[name])


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    assert_read_or_refused(tmp_path, name, TARGETS[name])
