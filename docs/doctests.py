"""Show the doctests in docstrings as code: without a fence Markdown takes `>>>` for a quotation."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object


class FencedDoctests(Extension):
    """Put a fence around every doctest."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:  # noqa: ARG002 - griffe's signature
        """Mend the docstring of a module, class, function or attribute.

        Args:
            obj: What was read.
            kwargs: What else griffe tells.
        """
        if obj.docstring is not None:
            obj.docstring.value = fence(obj.docstring.value)


def fence(text: str) -> str:
    """Return a docstring with its doctests in fences.

    Args:
        text: The docstring.
    """
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if not inside and line.startswith(">>>"):
            lines += ["", "```pycon"]
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)
