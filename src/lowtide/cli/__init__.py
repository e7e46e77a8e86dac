"""The command line: one file per verb.

A verb is imported when it is asked for, and imports what it needs when it runs: who runs one waits
for no other, and a watcher, which runs for weeks, keeps no other in memory.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from copy import copy
from functools import cache
from importlib import import_module
from typing import Annotated

import typer
from typer.models import CommandInfo

from lowtide.cli.examples import epilog
from lowtide.cli.older import spelt_anew
from lowtide.cli.options import HOW, grouped
from lowtide.errors import Argument, LowtideError
from lowtide.files import ensure_home

_INTERRUPTED = 130
# Options that end all else, so that no verb is run.
_FIRST = ("-h", "--help", "--version")

# Each verb in the order of the list, and where it is: a module of this package, and its name there.
# One of two words stands beside that of its first: whoever says another second word means that one.
_VERBS = {
    "demo": "plan.demo",
    "plan": "plan.plan",
    "when": "when.when",
    "tradeoff": "when.tradeoff",
    "plan-cluster": "plan_cluster.plan_cluster",
    "grid": "grid.grid",
    "convert": "convert.convert",
    "trace": "trace.trace",
    "measure": "measure.measure",
    "mark": "measure.mark",
    "run": "run.run",
    "sbatch": "sbatch.sbatch",
    "queue": "queue.queue",
    "drive": "drive.drive",
    "learn": "learn.learn",
    "model": "model.model",
    "watch": "watch.watch",
    "node": "node.node",
    "show": "show.show",
    "jobs": "jobs.jobs",
    "usage": "usage.usage",
    "serve": "serve.serve",
    "login": "login.login",
    "logout": "login.logout",
    "simulate": "simulate.simulate",
    "sweep": "sweep.sweep",
    "report": "sweep.report",
    "doctor": "doctor.doctor",
    "warm": "warm.warm",
    "version": "doctor.version",
    "grid backtest": "grid.backtest",
    "learn check": "learn.check",
    "learn sizes": "scaling.sizes",
    "queue report": "queue.report",
    "queue waits": "queue.waits",
    "queue release": "queue.release",
    "queue hold": "queue.hold",
    "queue forget": "queue.forget",
    "serve mail": "serve.mail",
    "serve node-token": "serve.node_token",
    "serve tokens": "serve.tokens",
    "watch follow": "watch.follow",
}
# Verbs that have verbs of their own, each in the module of its name.
_GROUPS = ("profiles", "recording", "reproduce", "store", "stress")


def _with(verbs: Iterable[str], groups: Iterable[str]) -> typer.Typer:
    """Return the command line with some of its verbs; the others are not even imported."""
    app = typer.Typer(
        name="lowtide",
        help="Know what batch jobs draw and emit, and run them when the grid is clean.",
        epilog="Start with: lowtide demo. Every verb explains itself: lowtide VERB --help",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    for name in verbs:
        # What follows the options of this one is another program's.
        passing = {"ignore_unknown_options": True, "allow_interspersed_args": False}
        more = passing if name == "sbatch" else None
        app.command(name, epilog=epilog(name), context_settings=more)(grouped(_verb(name)))
    for name in groups:
        app.add_typer(import_module(f"{__name__}.{name}").__dict__[name])
    app.callback()(_top)
    return app


def _verb(name: str) -> Callable[..., None]:
    module, _, called = _VERBS[name].partition(".")
    verb: Callable[..., None] = getattr(import_module(f"{__name__}.{module}"), called)
    return verb


@cache
def whole() -> typer.Typer:
    """Return the command line with all its verbs."""
    return _with(_VERBS, _GROUPS)


def _tell_version(asked: bool) -> None:
    if asked:
        _verb("version")()
        raise typer.Exit


def _top(
    version: Annotated[  # noqa: ARG001 - its callback has answered
        bool,
        typer.Option(
            "--version", callback=_tell_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Keep verbs as subcommands, and let them say what kernels have to tell."""
    from lowtide import compiled

    compiled.tell = lambda words: print(f"lowtide: {words}", file=sys.stderr)


def main() -> None:
    """Run the command line; errors become one line on stderr and an exit code.

    0 is success, 1 an error of lowtide's own, 2 bad input, among it a class of the user's own that
    breaks, 130 Ctrl-C.
    """
    # Who starts this may have closed them: no other file may come by their numbers.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    # A terminal that cannot show a character gets another one instead of an error.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    ensure_home()
    if " ".join(sys.argv[1:3]) not in _VERBS:
        sys.argv[1:] = spelt_anew(sys.argv[1:])
    if " ".join(sys.argv[1:3]) in _VERBS:
        sys.argv[1:3] = [" ".join(sys.argv[1:3])]
    if sys.argv[1:2] == ["sbatch"]:
        from lowtide.cli.sbatch import parted

        sys.argv[2:] = parted(sys.argv[2:])
    try:
        _needed(sys.argv[1:2])()
    except LowtideError as error:
        _fail(_as_typed(error, sys.argv[1:2]), code=2)
    except BrokenPipeError:
        # Whoever read our output has seen enough; there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        _fail("interrupted", code=_INTERRUPTED)
    except SystemExit as error:
        # Typer makes an exit of an interrupt, without a word.
        if error.code == _INTERRUPTED and _is_interrupt(error):
            _fail("interrupted", code=_INTERRUPTED)
        raise
    except Exception as error:  # noqa: BLE001 - the last resort: no user shall see a traceback
        if _is_interrupt(error):
            _fail("interrupted", code=_INTERRUPTED)
        if os.environ.get("LOWTIDE_DEBUG"):
            traceback.print_exc()
        from lowtide.registry import place_of

        if (where := place_of(error)) is not None:
            _fail(
                f"{where}: {type(error).__name__}: {error}. With LOWTIDE_DEBUG=1 all calls that "
                "led there are printed.",
                code=2,
            )
        _fail(
            f"an error of lowtide's own, {type(error).__name__}: {error}. "
            "Run again with LOWTIDE_DEBUG=1 and report what it prints.",
            code=1,
        )


def _as_typed(error: LowtideError, words: list[str]) -> str:
    """Return an error with the arguments that it speaks of as this verb's options.

    A verb without such options takes them from a file, where they are keys.
    """
    known = bool(words) and words[0] in _VERBS
    options = inspect.signature(grouped(_verb(words[0]))).parameters if known else {}

    def spell(argument: Argument) -> str:
        value = argument.value or ""
        if argument.name == "time_unit" and argument.name in options:
            return f"--time-unit={value}"
        if "how" not in options or argument.name not in HOW:
            return str(argument)
        said = f"{argument.name}={value}"
        return f"--how '{said}'" if " " in value else f"--how {said}"

    return error.spelt(spell)


def _needed(words: list[str]) -> typer.Typer:
    """Return the command line with the verb that is asked for, or all where none is known.

    To look at the options of every verb takes longer than most verbs need to answer, so that a list
    of verbs is printed from their names and first lines.
    """
    if words and words[0] in _VERBS:
        return _with(words, ())
    if words and words[0] in _GROUPS:
        return _with((), words)
    if any(word.startswith("-") and word not in _FIRST for word in words):
        return whole()
    small = copy(whole())
    groups = [
        CommandInfo(name=each.typer_instance.info.name, help=each.typer_instance.info.help)
        for each in small.registered_groups
        if each.typer_instance is not None
    ]
    small.registered_commands = [*map(_without_options, [*small.registered_commands, *groups])]
    small.registered_groups = []
    return small


def _without_options(command: CommandInfo) -> CommandInfo:
    """Return a command that is listed, and never run."""

    def listed() -> None: ...

    listed.__name__ = getattr(command.callback, "__name__", command.name or "")
    listed.__doc__ = command.callback.__doc__ if command.callback is not None else None
    small = copy(command)
    small.callback = listed
    return small


def _is_interrupt(error: BaseException) -> bool:
    from lowtide.interruption import is_interrupt

    return is_interrupt(error)


def _fail(message: str, *, code: int) -> None:
    with contextlib.suppress(OSError):
        print(f"lowtide: {message}", file=sys.stderr)
    sys.exit(code)
