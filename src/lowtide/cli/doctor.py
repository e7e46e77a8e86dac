"""`lowtide doctor` and `lowtide version`: what this installation can do, and the cure where not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.cli.output import TABLE, Column, Form, print_rows

if TYPE_CHECKING:
    from lowtide.meters import Found, Roots

# The packages that each part needs, what it brings, and the extra it comes with.
_PARTS = {
    "core": (("numpy", "numba", "polars"), "signals, jobs, plans, files", ""),
    "command line": (("typer", "rich"), "this command", ""),
    "figures": (("altair", "vl-convert-python"), "charts and HTML reports", "figures"),
    "sweeps": (("dask", "distributed", "dask-jobqueue"), "sweeps beyond one machine", "sweep"),
    "store": (("sqlalchemy",), "keeping and listing what was watched", "watch"),
    "postgresql": (("psycopg",), "keeping it on a server", "postgres"),
    "power models": (("scikit-learn",), "lowtide model", "learn"),
}
_WIDEST = 120
# Tools give up after five seconds; what takes longer hangs.
_METERS_S = 8.0
# Packages that are imported by another name than they are installed by.
_MODULES = {"scikit-learn": "sklearn", "vl-convert-python": "vl_convert"}


def doctor(form: Form = TABLE) -> None:
    """Say what works here and how to mend the rest.

    Exits with 1 if a part that lowtide cannot do without is broken.
    """
    import typer

    checks = [
        _python(),
        *(_part(name) for name in _PARTS),
        _plugins("policies"),
        *_formats(),
        *_meters(),
        _gpus(),
        *_grids(),
        *_slurm(),
    ]
    columns = [Column(key, key) for key in ("what", "state", "detail", "cure")]
    form.print(
        checks,
        columns=columns,
        # Sentences, which no script cuts apart: those take --parsable or --json.
        show=lambda: print_rows(columns, checks, most=_WIDEST),
    )
    if any(check["state"] == "broken" for check in checks):
        raise typer.Exit(1)


def _check(what: str, state: str, detail: str, cure: str = "") -> dict[str, str]:
    return {"what": what, "state": state, "detail": detail, "cure": cure}


def _python() -> dict[str, str]:
    import platform
    import sys

    return _check("python", "works", f"{platform.python_version()}, {sys.platform}")


def _part(name: str) -> dict[str, str]:
    from importlib import import_module
    from importlib.metadata import version
    from importlib.util import find_spec

    packages, brings, extra = _PARTS[name]
    for package in packages:
        module = _MODULES.get(package, package.replace("-", "_"))
        if extra:
            # Importing some of these changes the process: it is enough that they are there.
            if find_spec(module) is None:
                return _check(name, "absent", brings, f"pip install 'lowtide[{extra}]'")
            continue
        try:
            import_module(module)
        except ImportError as error:
            return _check(name, "broken", str(error), "pip install --force-reinstall lowtide")
    found = ", ".join(f"{package} {version(package)}" for package in packages)
    return _check(name, "works", f"{brings}: {found}")


def _plugins(kind: str) -> dict[str, str]:
    from lowtide.errors import LowtideError
    from lowtide.registry import Registry

    registry: Registry[object] = Registry(f"lowtide.{kind}", kind)
    names, broken = registry.names(), []
    for name in names:
        try:
            registry.load(name)
        except LowtideError as error:
            broken.append(str(error))
    label = kind.replace("_", " ")
    if not names or broken:
        detail = "; ".join(broken) or "none is registered"
        return _check(label, "broken", detail, "pip install --force-reinstall lowtide")
    return _check(label, "works", ", ".join(names))


def _formats() -> list[dict[str, str]]:
    return [_plugins("signal_formats"), _plugins("job_formats")]


def _meters() -> list[dict[str, str]]:
    """Return what this machine offers of each kind of meter."""
    from functools import partial

    from lowtide.meters import METERS, Roots
    from lowtide.meters.source import side_by_side

    def look(name: str) -> Found:
        return METERS.load(name).find(Roots())

    names = METERS.names()
    # Tools and drivers may hang: side by side they cost as much as one.
    answers = side_by_side([partial(look, name) for name in names], _METERS_S)
    checks = []
    for name, found in zip(names, answers, strict=True):
        if found is None:
            detail, cure = f"it hangs, for over {_METERS_S:g} s", "name the meters with --meter"
            checks.append(_check(f"meter {name}", "no answer", detail, cure))
        elif isinstance(found, Exception):
            checks.append(_check(f"meter {name}", "broken", str(found)))
        else:
            checks.append(_check(f"meter {name}", found.state, found.what, found.cure))
    return checks


def _gpus(roots: Roots | None = None) -> dict[str, str]:
    """Return whether the GPUs that the PCI bus shows are read, and the cure where they are not."""
    from lowtide.meters import Roots
    from lowtide.meters.source import side_by_side
    from lowtide.monitor.gpus import cards_on_bus, name_unread
    from lowtide.watching.service import cure_of, find_gpus

    roots = roots or Roots()
    (answer,) = side_by_side([lambda: find_gpus((), roots)], _METERS_S)
    if answer is None:
        return _check("GPUs", "no answer", f"their driver hangs, for over {_METERS_S:g} s")
    if isinstance(answer, Exception):
        raise answer
    source, unread = answer
    if source is not None:
        source.close()
    cards = cards_on_bus(roots.sysfs)
    if cards is None:
        return _check("GPUs", "unknown", "whether there are any cannot be told: no PCI bus here")
    told = name_unread(card for card in cards if card.maker in unread)
    if told:
        cures = "; ".join(cure_of(card, unread[card.maker]) for card in told)
        return _check("GPUs", "not read", "; ".join(told.values()), cures)
    makers = ", ".join(sorted({card.maker for card in cards}))
    return _check("GPUs", "works" if cards else "absent", makers or "the PCI bus shows none")


def _slurm() -> list[dict[str, str]]:
    """Return how the Slurm of this site is set, as far as deferred jobs mind; nothing without."""
    from lowtide.acting.slurm import SlurmBackend
    from lowtide.slurm import SlurmClient
    from lowtide.units import format_duration

    if not SlurmClient.is_here():
        return []
    site = SlurmBackend(client=SlurmClient(timeout_s=_METERS_S)).site
    if site is None:
        return [_check("slurm", "no answer", "its controller does not say how it is set")]
    detail = f"its loops take up to {format_duration(site.loops.total_s)} of every promise"
    return [_check("slurm", "works", detail, "; ".join(site.advice))]


def _grids() -> list[dict[str, str]]:
    """Return for each provider of live signals whether it can be asked, and what it last said.

    None is asked: that may take long, and costs some users one of few questions.
    """
    from lowtide.errors import LowtideError
    from lowtide.grids.providers import PROVIDERS

    checks = []
    for name in PROVIDERS.names():
        try:
            checks.append(_provider(name))
        except LowtideError as error:
            checks.append(_check(f"grid {name}", "broken", str(error)))
    return checks


def _provider(name: str) -> dict[str, str]:
    import time

    from lowtide.errors import FileProblem, InvalidInput, ProviderProblem
    from lowtide.grids.cache import Cache, format_age
    from lowtide.grids.live import Feed
    from lowtide.grids.providers import PROVIDERS, cure, find_keys

    provider, cache, now = PROVIDERS.load(name)(), Cache(), time.time()
    feeds = [Feed(provider=provider, name=zone, cache=cache) for zone in cache.names(name)]
    entries = sorted((feed.entry for feed in feeds), key=lambda entry: -(entry.asked or 0.0))
    words = [f"{provider.title}, {provider.kind} intensity"]
    words += [
        f"{entry.name} in the cache, {format_age(now - entry.retrieved)} old"
        for entry in entries
        if entry.retrieved is not None
    ]
    words += [problem for feed in feeds for problem in feed.problems]
    state, mend = "ready", ""
    if entries and entries[0].asked is not None:
        state = "works" if entries[0].retrieved == entries[0].asked else "no answer"
        words += entries[0].problems
    try:
        find_keys(name, provider.keys)
    except ProviderProblem:
        state, mend = "no key", cure(name, provider.keys)
    except (FileProblem, InvalidInput) as error:
        state, mend = "no permission", str(error)
    return _check(f"grid {name}", state, "; ".join(words), mend)


def version(form: Form = TABLE) -> None:
    """Print the version."""
    import platform
    from importlib.metadata import version as installed

    facts = {"lowtide": installed("lowtide"), "python": platform.python_version()}
    form.print(
        [facts],
        document=facts,
        show=lambda: print(f"lowtide {facts['lowtide']} (Python {facts['python']})"),
    )
