"""The command line: one file per verb.

Verbs import what they need when they run, so that `lowtide --help` answers at once.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import sys
import traceback
from copy import copy
from typing import Annotated

import typer
from typer.models import CommandInfo, TyperInfo

from lowtide.cli.convert import convert
from lowtide.cli.doctor import doctor, version
from lowtide.cli.drive import drive
from lowtide.cli.examples import epilog
from lowtide.cli.grid import backtest, grid
from lowtide.cli.jobs import jobs
from lowtide.cli.learn import check, learn
from lowtide.cli.login import login, logout
from lowtide.cli.measure import mark, measure
from lowtide.cli.model import model
from lowtide.cli.node import node
from lowtide.cli.older import spelt_anew
from lowtide.cli.options import HOW, grouped
from lowtide.cli.plan import demo, plan
from lowtide.cli.plan_cluster import plan_cluster
from lowtide.cli.profiles import profiles
from lowtide.cli.queue import forget, hold, queue, release, waits
from lowtide.cli.queue import report as queue_report
from lowtide.cli.recording import recording
from lowtide.cli.reproduce import reproduce
from lowtide.cli.run import run
from lowtide.cli.sbatch import parted, sbatch
from lowtide.cli.scaling import sizes
from lowtide.cli.serve import mail, node_token, serve, tokens
from lowtide.cli.show import show
from lowtide.cli.simulate import simulate
from lowtide.cli.store import store
from lowtide.cli.stress import stress
from lowtide.cli.sweep import report, sweep
from lowtide.cli.trace import trace
from lowtide.cli.usage import usage
from lowtide.cli.warm import warm
from lowtide.cli.watch import follow, watch
from lowtide.cli.when import tradeoff, when
from lowtide.errors import Argument, LowtideError
from lowtide.files import ensure_home

_INTERRUPTED = 130
# Options that end all else, so that no verb is run.
_FIRST = ("-h", "--help", "--version")

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
for verb in (
    demo,
    plan,
    when,
    tradeoff,
    plan_cluster,
    grid,
    convert,
    trace,
    measure,
    mark,
    run,
    sbatch,
    queue,
    drive,
    learn,
    model,
    watch,
    node,
    show,
    jobs,
    usage,
    serve,
    login,
    logout,
    simulate,
    sweep,
    report,
    doctor,
    warm,
    version,
):
    # What follows the options of these is another program's.
    passing = {"ignore_unknown_options": True, "allow_interspersed_args": False}
    named = epilog(verb.__name__.replace("_", "-"))
    app.command(epilog=named, context_settings=passing if verb is sbatch else None)(grouped(verb))
# A verb of two words, beside the one of its first: whoever says another second word means that one.
for name, second in (
    ("grid backtest", backtest),
    ("learn check", check),
    ("learn sizes", sizes),
    ("queue report", queue_report),
    ("queue waits", waits),
    ("queue release", release),
    ("queue hold", hold),
    ("queue forget", forget),
    ("serve mail", mail),
    ("serve node-token", node_token),
    ("serve tokens", tokens),
    ("watch follow", follow),
):
    app.command(name, epilog=epilog(name))(grouped(second))
app.add_typer(profiles)
app.add_typer(recording)
app.add_typer(reproduce)
app.add_typer(store)
app.add_typer(stress)


def _tell_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
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

    0 is success, 1 an error of lowtide's own, 2 bad input, 130 Ctrl-C.
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
    two = {each.name for each in app.registered_commands}
    if " ".join(sys.argv[1:3]) not in two:
        sys.argv[1:] = spelt_anew(sys.argv[1:])
    if " ".join(sys.argv[1:3]) in two:
        sys.argv[1:3] = [" ".join(sys.argv[1:3])]
    if sys.argv[1:2] == ["sbatch"]:
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
        _fail(
            f"an error of lowtide's own, {type(error).__name__}: {error}. "
            "Run again with LOWTIDE_DEBUG=1 and report what it prints.",
            code=1,
        )


def _as_typed(error: LowtideError, words: list[str]) -> str:
    """Return an error with the arguments that it speaks of as this verb's options.

    A verb without such options takes them from a file, where they are keys.
    """
    verb = next((each.callback for each in app.registered_commands if _is_verb(each, words)), None)
    options = inspect.signature(verb).parameters if verb is not None else {}

    def spell(argument: Argument) -> str:
        value = argument.value or ""
        if argument.name == "time_unit" and argument.name in options:
            return f"--time-unit={value}"
        if "how" not in options or argument.name not in HOW:
            return str(argument)
        said = f"{argument.name}={value}"
        return f"--how '{said}'" if " " in value else f"--how {said}"

    return error.spelt(spell)


def _is_verb(command: CommandInfo, words: list[str]) -> bool:
    name = getattr(command.callback, "__name__", "").replace("_", "-")
    return [command.name or name] == words


def _needed(words: list[str]) -> typer.Typer:
    """Return the command line with the verb that is asked for, or all where none is known.

    To look at the options of every verb takes longer than most verbs need to answer, so that a list
    of verbs is printed from their names and first lines.
    """
    small = copy(app)
    small.registered_commands = [each for each in app.registered_commands if _is_verb(each, words)]
    small.registered_groups = [
        each for each in app.registered_groups if [_info(each).name] == words
    ]
    if small.registered_commands or small.registered_groups:
        return small
    if any(word.startswith("-") and word not in _FIRST for word in words):
        return app
    groups = [
        CommandInfo(name=_info(each).name, help=_info(each).help) for each in app.registered_groups
    ]
    small.registered_commands = [*map(_without_options, [*app.registered_commands, *groups])]
    return small


def _info(group: TyperInfo) -> TyperInfo:
    return group.typer_instance.info if group.typer_instance is not None else group


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
