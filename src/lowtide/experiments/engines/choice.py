"""From words to an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from lowtide.errors import InvalidInput, UnknownName
from lowtide.experiments.engines.engine import Engine
from lowtide.experiments.engines.local import Local
from lowtide.experiments.engines.on_dask import OnDask
from lowtide.experiments.engines.on_slurm import OnSlurm

ENGINES = ("local", "dask", "slurm")

_SLURM_WORKERS = 4
# What can be said of the jobs that are workers on Slurm.
SLURM_KEYS = ("account", "cores", "host", "memory", "queue", "walltime")


def make_engine(
    name: str = "local",
    *,
    workers: int | None = None,
    address: str | None = None,
    slurm: Mapping[str, str] | None = None,
    folder: Path | str = ".",
) -> Engine:
    """Return an engine by its name.

    Args:
        name: `local`, `dask` or `slurm`.
        workers: How many runs at the same time; None for what the engine takes by default.
        address: The scheduler of a Dask cluster that is already there.
        slurm: What Slurm's jobs shall have: cores, memory, walltime, queue, account, host.
        folder: Where Slurm's workers find their keys and leave their logs meanwhile.

    >>> make_engine("local", workers=2)
    Local(workers=2, retries=2, name='local')
    """
    if name not in ENGINES:
        raise UnknownName("engine", name, ENGINES)
    if address is not None and name != "dask":
        raise InvalidInput(f"--address is for --engine dask, not {name}: leave it out")
    if slurm and name != "slurm":
        raise InvalidInput(f"--slurm is for --engine slurm, not {name}: leave it out")
    if name == "local":
        return Local(workers=workers)
    if name == "dask":
        return OnDask(workers=workers, address=address)
    said = dict(slurm or {})
    for key in said:
        if key not in SLURM_KEYS:
            raise UnknownName("key of --slurm", key, SLURM_KEYS)
    cores = said.pop("cores", "1")
    if not cores.isdecimal():
        raise InvalidInput(f"--slurm cores is a whole number, not {cores!r}")
    engine = OnSlurm(
        workers=_SLURM_WORKERS if workers is None else workers,
        cores=int(cores),
        folder=Path(folder),
    )
    return replace(engine, **said)  # type: ignore[arg-type]
