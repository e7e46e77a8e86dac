"""Links that show one job to whoever has them: made by whose job it is, and by nobody else.

A link is a token that opens no other door than the page of its job. It shows what its maker may
see of that job because it is theirs, ends by itself or when they end it, and they read when
somebody looked.
"""

from __future__ import annotations

from lowtide.errors import InvalidInput
from lowtide.serve.audit import write_look
from lowtide.serve.tokens import SHARE, Pass, TokenLine, list_tokens, make_token
from lowtide.serve.viewer import Viewer, VisibleJob

# For how many days a link may be good.
DAYS = (1, 7, 30)
# So many of somebody's are good at once: each may be asked for at a pace of its own.
MOST_LINKS = 100
_DAY_S = 86400.0
# What the same link shows again is written down once in so long a time.
_AGAIN_S = 3600.0


def may_share(viewer: Viewer, found: VisibleJob) -> bool:
    """Return whether somebody may make links to a job: to their own, whatever else they see.

    The owner of a machine has no one to whom this machine's own address would be of use.
    """
    return found.record.user == viewer.user and viewer.rights.role != "owner" and not viewer.only


def make_job_link(viewer: Viewer, found: VisibleJob, days: str) -> str:
    """Make a link to a job that may be shared, and return what its address ends with.

    Args:
        days: For how many days it is good, as a form says it.
    """
    if days not in map(str, DAYS):
        raise InvalidInput(
            f"a link is good for {', '.join(map(str, DAYS[:-1]))} or {DAYS[-1]} days"
        )
    if len(links_of(viewer)) >= MOST_LINKS:
        raise InvalidInput(
            f"{MOST_LINKS} links of yours are good, which is the most: end some under Settings"
        )
    return make_token(
        viewer.database,
        owner=viewer.user,
        scope=f"{SHARE}{found.ref}",
        lasts_s=int(days) * _DAY_S,
        now=viewer.now,
        note=f"job {found.record.shown_id}",
    )


def links_of(viewer: Viewer, ref: str = "") -> list[TokenLine]:
    """Return somebody's links that are good, the last made first.

    Args:
        ref: That of the job that they show; empty for all.
    """
    links = list_tokens(viewer.seen, owner=viewer.user, now=viewer.now)
    return [each for each in links if each.shares and ref in ("", each.shares)]


def note_look(viewer: Viewer, link: Pass, found: VisibleJob) -> None:
    """Write down that somebody looked by a link, for its maker to read."""
    write_look(
        viewer.database,
        f"link {link.number}",
        "whoever has it",
        f"job {found.record.shown_id}",
        (link.owner,),
        now=viewer.now,
        every_s=_AGAIN_S,
    )
