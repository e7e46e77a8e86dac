"""`lowtide version`: which lowtide this is."""

from __future__ import annotations

from lowtide.cli.options import AsJson, Parsable
from lowtide.cli.output import print_json, print_parsable


def version(as_json: AsJson = False, parsable: Parsable = False) -> None:
    """Print the version."""
    import platform
    from importlib.metadata import version as installed

    facts = {"lowtide": installed("lowtide"), "python": platform.python_version()}
    if as_json:
        print_json(facts)
    elif parsable:
        print_parsable(list(facts), [list(facts.values())])
    else:
        print(f"lowtide {facts['lowtide']} (Python {facts['python']})")
