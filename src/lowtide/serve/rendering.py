"""Making a page: templates that escape whatever they are given, and figures as pages show them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from lowtide.serve.api import NOT_FOUND
from lowtide.serve.drawing import (
    energy_text,
    energy_texts,
    guessed,
    known,
    mass_text,
    mass_texts,
    summed_energy,
    summed_mass,
)
from lowtide.serve.settings import Settings
from lowtide.units import (
    MISSING,
    format_duration,
    format_energy,
    format_mass,
    format_number,
    format_percent,
    format_time,
)

# Where pages are, and what they are called; the last are of those who see all.
NAMES = (
    *(
        ("/", "Home"),
        ("/jobs", "Jobs"),
        ("/when", "When"),
        ("/waste", "Waste"),
        ("/usage", "Usage"),
    ),
    *(("/projects", "Projects"), ("/reports", "Reports"), ("/nodes", "Nodes")),
    *(("/cluster", "Cluster"), ("/looks", "Who looked"), ("/settings", "Settings")),
    ("/method", "Method"),
)
OF_STAFF = (("/health", "Health"), ("/audit", "Audit"))


class Renderer:
    """Makes pages of templates."""

    def __init__(self) -> None:
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "energies": energy_texts,
            "masses": mass_texts,
            "energy": energy_text,
            "mass": mass_text,
            "duration": lambda seconds: format_duration(known(seconds)),
            "seconds": lambda value: MISSING if known(value) is None else f"{value:.1f} s",
            "moment": lambda moment: format_time(known(moment)),
            "share": lambda share: format_percent(known(share)),
            "number": lambda value: format_number(known(value)),
            "counted": _counted,
            "joules": summed_energy,
            "grams": summed_mass,
            "energy_of": lambda value: format_energy(known(value)),
            "mass_of": lambda value: format_mass(known(value)),
            "guessed_energy": lambda value: guessed(format_energy(known(value))),
            "guessed_mass": lambda value: guessed(format_mass(known(value))),
            "known": lambda value: MISSING if value in (None, "") else value,
        }

    def login(self, *, words: str, status: int, settings: Settings) -> Response:
        """Return the page on which people choose how to log in."""
        template = self._templates.get_template("login.html")
        return HTMLResponse(template.render(words=words, settings=settings), status_code=status)

    def page(self, request: Request, template: str, **given: Any) -> Response:
        """Return a page for whoever asks."""
        viewer = request.state.viewer
        html = self._templates.get_template(template).render(
            viewer=viewer,
            form_key=request.state.shown.form_key,
            path=request.url.path,
            names=NAMES + (OF_STAFF if viewer.sees_all else ()),
            **given,
        )
        return HTMLResponse(html)

    def plain(self, template: str, *, status: int = 200, **given: Any) -> Response:
        """Return a page for whoever comes, known or not."""
        return HTMLResponse(
            self._templates.get_template(template).render(**given), status_code=status
        )

    def nothing(self) -> Response:
        """Return the page of what is not there, or not to be seen: the same for both."""
        return self.refusal(NOT_FOUND["error"], 404)

    def refusal(self, words: str, status: int) -> Response:
        """Return a page that says why there is none."""
        return self.plain("refusal.html", status=status, words=words)


def _counted(value: float | None, mark: str) -> str:
    """Return a number with the mark of how sure it is; what is not known has none."""
    text = format_number(known(value))
    return text if text == MISSING else f"{mark}{text}"


async def form_of(request: Request) -> dict[str, str]:
    """Return what a form says, of what it says twice the last."""
    body = await request.body()
    return {name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
