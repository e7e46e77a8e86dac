"""An example or two for each verb: shown by its --help, run by the tests."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": ("lowtide demo", "lowtide demo --grid sunny --seed 3"),
    "plan": (
        "lowtide plan --profile h200 --deadline +12h --grid windy",
        "lowtide plan -t 6:00:00 --power 300 --deadline +36h --signal DE.csv "
        "--interruptible anywhere --policy wait_awhile --policy exact --explain",
    ),
    "when": (
        "lowtide when -t 6:00:00 --deadline +24h --signal DE.csv",
        "lowtide when --profile h200 --deadline +2d --grid sunny",
        "lowtide when -t 8:00:00 --power 300 --deadline +2d --grid windy --tradeoff "
        "--interruptible anywhere",
    ),
    "grid": (
        "lowtide grid windy --days 3",
        "lowtide grid DE.csv --from 2024-07-01T00:00Z --to +2d",
    ),
    "convert": (
        "lowtide convert jobs.csv jobs.swf --start 2024-07-01T00:00Z",
        "lowtide convert profile.toml profile.json",
    ),
    "reproduce": (
        "lowtide reproduce thesis --only length=16h,wait=24h",
        "lowtide reproduce thesis --signal DE.csv --startup added --only length=8h,length=16h",
    ),
    "doctor": ("lowtide doctor",),
    "version": ("lowtide version --json",),
}


def epilog(verb: str) -> str:
    """Return the examples of a verb as they close its help.

    Args:
        verb: Name of the verb.
    """
    # The backspace tells the help formatter to leave line breaks alone.
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[verb])
