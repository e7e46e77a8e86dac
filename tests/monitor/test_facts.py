"""Facts about what is no job of a batch system."""

from __future__ import annotations

from lowtide.monitor.facts import facts_of_unit
from lowtide.monitor.snapshot import Unit


def test_a_service_tells_of_itself() -> None:
    unit = Unit(source="systemd", job_id="nginx.service", started=5.0, user="www")
    facts = facts_of_unit(unit, host="n1")
    assert (facts.shown_id, facts.state, facts.nodes) == ("nginx.service", "running", ("n1",))
    assert (facts.user, facts.name, facts.started) == ("www", None, 5.0)
    assert facts_of_unit(unit, host="n1", running=False).state is None
