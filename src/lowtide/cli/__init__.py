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

from lowtide.cli.convert import convert
from lowtide.cli.doctor import doctor, version
from lowtide.cli.examples import epilog
from lowtide.cli.grid import grid
from lowtide.cli.jobs import jobs
from lowtide.cli.learn import learn
from lowtide.cli.measure import mark, measure
from lowtide.cli.model import model
from lowtide.cli.node import node
from lowtide.cli.options import HOW, grouped
from lowtide.cli.plan import demo, plan
from lowtide.cli.queue import drive, queue
from lowtide.cli.reproduce import reproduce
from lowtide.cli.run import run
from lowtide.cli.sbatch import parted, sbatch
from lowtide.cli.show import show
from lowtide.cli.simulate import simulate
from lowtide.cli.store import store
from lowtide.cli.stress import stress
from lowtide.cli.sweep import report, sweep
from lowtide.cli.usage import usage
from lowtide.cli.warm import warm
from lowtide.cli.watch import watch
from lowtide.cli.when import tradeoff, when
from lowtide.errors import Argument, LowtideError
from lowtide.files import ensure_home

_INTERRUPTED = 130

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
    grid,
    convert,
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
    simulate,
    sweep,
    report,
    doctor,
    warm,
    version,
):
    # What follows the options of these is another program's.
    passing = {"ignore_unknown_options": True, "allow_interspersed_args": False}
    app.command(epilog=epilog(verb.__name__), context_settings=passing if verb is sbatch else None)(
        grouped(verb)
    )
app.add_typer(reproduce)
app.add_typer(store)
app.add_typer(stress)


def _tell_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_tell_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Keep verbs as subcommands."""


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


def _is_verb(command: typer.models.CommandInfo, words: list[str]) -> bool:
    return [getattr(command.callback, "__name__", "")] == words


def _needed(words: list[str]) -> typer.Typer:
    """Return the command line with the verb that is asked for, or all where none is known.

    To look at the options of every verb takes longer than most verbs need to answer.
    """
    asked = [each for each in app.registered_commands if _is_verb(each, words)]
    if not asked:
        return app
    small = copy(app)
    small.registered_commands, small.registered_groups = asked, []
    return small


def _is_interrupt(error: BaseException) -> bool:
    from lowtide.interruption import is_interrupt

    return is_interrupt(error)


def _fail(message: str, *, code: int) -> None:
    with contextlib.suppress(OSError):
        print(f"lowtide: {message}", file=sys.stderr)
    sys.exit(code)
