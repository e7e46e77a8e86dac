"""`lowtide`, also as `python -m lowtide` where the command is not on the path."""

import signal
import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it with 130 and one line from the first moment on."""
    try:
        from lowtide import compiled
        from lowtide.cli import interrupts
        from lowtide.cli import main as run

        interrupts.end_at_once()
        compiled.tell = lambda words: print(f"lowtide: {words}", file=sys.stderr)
        run()
    except KeyboardInterrupt:
        print("lowtide: interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        # All is done but leaving, which an interrupt would make look like a failure.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
