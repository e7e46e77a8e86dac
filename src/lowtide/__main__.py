"""`lowtide`, also as `python -m lowtide` where the command is not on the path."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

# After this long Python is out of the callback in which it threw an interrupt away.
_AGAIN_S = 0.05


def main() -> None:
    """Run the command line; Ctrl-C ends it with 130 and one line from the first moment on."""
    before, sys.unraisablehook = sys.unraisablehook, _interrupt_again
    try:
        from lowtide import interruption
        from lowtide.cli import main as run

        interruption.end_at_once()
        run()
    except KeyboardInterrupt:
        print("lowtide: interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        # All is done but leaving, which an interrupt would make look like a failure.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.unraisablehook = before
        # Of an interrupt within code that is made of a string, as compilers and libraries do on
        # their way, Python keeps that nobody handled it, and ends `python -m` by that signal
        # whatever was made of it. Other such code has it forget that.
        exec("")  # noqa: S102 - it is empty


def _interrupt_again(thrown_away: UnraisableHookArgs) -> None:
    """Have an interrupt come again that fell into a callback, where Python throws it away."""
    if not issubclass(thrown_away.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(thrown_away)
        return
    again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT))
    again.daemon = True
    again.start()


if __name__ == "__main__":
    main()
