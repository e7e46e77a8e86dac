"""Taking pieces from nodes: each once, in order, and only what can be true.

A piece is written whole or not at all, in one transaction with its number, and with it the pieces
of other nodes that come at the same time. What a node could not have seen is set aside with the
reason, and the node goes on: it is for people to look at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from lowtide.errors import InvalidInput, StoreProblem
from lowtide.monitor.snapshot import JobFacts
from lowtide.serve.ledger import settle
from lowtide.serve.plausible import check_piece
from lowtide.serve.schema import incarnations, quarantine, take_turns
from lowtide.serve.writing import Told, placed, write
from lowtide.store.bulk import among, insert_rows, update_rows
from lowtide.store.codec import Look
from lowtide.store.database import Database
from lowtide.store.pieces import MOST_TEXT, Piece, unseal
from lowtide.store.tables import clean, in_parts

_SENDER = ("cluster", "host", "incarnation")


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a node is told.

    Attributes:
        seq: The highest number up to which the centre has every piece.
        taken: Whether the node may go on with the next; False where another is wanted.
        reason: Why the piece was set aside; empty where it was not.
    """

    seq: int
    taken: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceOrigin:
    """Who sends a piece, and which of theirs it is.

    Attributes:
        cluster: The cluster of the node whose token came with it.
        host: That node.
        incarnation: Which of its stores it comes from.
        seq: Its number, 1 for the first of an incarnation.
        tells_all: Whether this node may tell facts of jobs that run elsewhere.
    """

    cluster: str
    host: str
    incarnation: str
    seq: int
    tells_all: bool = False

    @property
    def name(self) -> tuple[str, str, str]:
        """What it is known by, but for its number."""
        return (self.cluster, self.host, self.incarnation)

    @property
    def named(self) -> dict[str, str]:
        """The same as columns."""
        return dict(zip(_SENDER, self.name, strict=True))


@dataclass(frozen=True, slots=True)
class Arrival:
    """A piece that has come, and who brings it."""

    sender: PieceOrigin
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A piece that has been looked into.

    Attributes:
        piece: What it tells; None where that cannot be true.
        looks: Its ticks.
        reason: Why it cannot.
    """

    arrival: Arrival
    piece: Piece | None = None
    looks: Sequence[Look] = field(default=())
    reason: str = ""


def receive(database: Database, sender: PieceOrigin, body: bytes, *, now: float) -> Receipt:
    """Take a piece, unless it is here already."""
    return receive_all(database, [Arrival(sender, body)], now=now)[0]


def receive_all(database: Database, arrivals: Sequence[Arrival], *, now: float) -> list[Receipt]:
    """Take pieces of different nodes, all in one transaction."""
    with database.reading() as connection:
        known = _standings(connection, arrivals)
    answers = [_in_turn(known.get(each.sender.name), each.sender.seq) for each in arrivals]
    places = [place for place, answer in enumerate(answers) if answer is None]
    opened = [_open(arrivals[place], now) for place in places]
    for place, answer in zip(places, _take(database, opened, now), strict=True):
        answers[place] = answer
    return [answer for answer in answers if answer is not None]


def _open(arrival: Arrival, now: float) -> _Opened:
    sender = arrival.sender
    try:
        piece = unseal(arrival.body)
        looks = check_piece(piece, cluster=sender.cluster, host=sender.host, now=now)
    except InvalidInput as error:
        return _Opened(arrival=arrival, reason=str(error))
    except Exception as error:  # noqa: BLE001 - no piece may keep those behind it from being taken
        return _Opened(arrival=arrival, reason=f"{type(error).__name__}: {error}")
    return _Opened(arrival=arrival, piece=piece, looks=looks)


def _take(database: Database, opened: Sequence[_Opened], now: float) -> list[Receipt]:
    """Write pieces; where that fails, those apart that it fails for."""
    try:
        return _written(database, opened, now)
    except StoreProblem as error:
        # A store that does not answer is no fault of the pieces; one that refuses a value is.
        if not isinstance(error.__cause__, sa.exc.DataError | sa.exc.IntegrityError):
            raise
        reason = str(error)
    except InvalidInput as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - as above
        reason = f"{type(error).__name__}: {error}"
    if len(opened) > 1:
        half = len(opened) // 2
        return [*_take(database, opened[:half], now), *_take(database, opened[half:], now)]
    return _written(database, [_Opened(arrival=opened[0].arrival, reason=reason)], now)


def _written(database: Database, opened: Sequence[_Opened], now: float) -> list[Receipt]:
    """Write pieces, set aside those that cannot be true, and return what their nodes are told."""
    if not opened:
        return []
    answers, told, aside = [], [], []
    with database.writing() as connection:
        take_turns(connection, "books")
        known = _standings(connection, [each.arrival for each in opened])
        new: list[dict[str, Any]] = []
        more: list[dict[str, Any]] = []
        for each in opened:
            sender, piece = each.arrival.sender, each.piece
            standing = known.get(sender.name)
            answer = _in_turn(standing, sender.seq)
            if answer is not None:
                answers.append(answer)
                continue
            reason = clean(each.reason)[:MOST_TEXT]
            answers.append(Receipt(sender.seq, taken=True, reason=reason))
            family = str(standing.family) if standing else _family(connection, sender, piece)
            skew_s = standing.skew_s if standing else 0.0
            noted = {
                **sender.named,
                "seq": sender.seq,
                "received": now,
                "skew_s": skew_s if piece is None else piece.made - now,
            }
            (more if standing else new).append(noted if standing else {**noted, "family": family})
            if piece is None:
                body = each.arrival.body
                of = {"seq": sender.seq, "received": now, "reason": reason, "body": body}
                aside.append({**sender.named, **of})
            else:
                told.append(
                    Told(
                        piece=piece,
                        looks=each.looks,
                        cluster=sender.cluster,
                        family=family,
                        tells_all=sender.tells_all,
                        is_first=standing is None,
                    )
                )
        update_rows(connection, incarnations, _SENDER, more)
        insert_rows(connection, incarnations, new)
        insert_rows(connection, quarantine, aside)
        write(connection, told, now=now)
    return answers


def _standings(
    connection: sa.Connection, arrivals: Sequence[Arrival]
) -> dict[tuple[str, str, str], Any]:
    """Return what is known of those who bring pieces, by who they are."""
    names = [each.sender.name for each in arrivals]
    of = [incarnations.c[name] for name in _SENDER]
    found: dict[tuple[str, str, str], Any] = {}
    for part in in_parts(names):
        question = sa.select(incarnations).where(among(connection, of, part))
        found |= {tuple(row[:3]): row for row in connection.execute(question)}
    return found


def _in_turn(known: Any, seq: int) -> Receipt | None:
    """Return the answer to a piece that is here, or not in its turn; None where it is."""
    last = 0 if known is None else int(known.seq)
    if seq == last + 1:
        return None
    return Receipt(last, taken=seq <= last)


def _family(connection: sa.Connection, sender: PieceOrigin, piece: Piece | None) -> str:
    """Return under which name the units of a new incarnation are known."""
    if piece is None or not piece.continues:
        return sender.incarnation
    of = incarnations.c
    earlier = (of.cluster == sender.cluster, of.host == sender.host)
    question = sa.select(of.family).where(*earlier, of.incarnation == piece.continues)
    return connection.execute(question).scalar() or piece.continues


def take_facts(database: Database, facts: Sequence[JobFacts], *, now: float) -> None:
    """Take what the cluster's own Slurm tells of jobs, wherever they run."""
    for part in in_parts(facts):
        with database.writing() as connection:
            take_turns(connection, "books")
            named, gone = placed(connection, part)
            settle(connection, named | gone, now=now, since={}, anew=named if gone else ())
