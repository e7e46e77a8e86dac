"""Many rows at once: what a server takes in one go, and a file row by row.

A statement for each row costs a server far more than the row itself. So rows go to PostgreSQL as
one statement over arrays, new ones and changes alike; COPY it takes from nobody whom it keeps rows
from. SQLite, which is no server, is as fast row by row. What is written is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

_Row = Mapping[str, Any]


def insert_rows(connection: sa.Connection, table: sa.Table, rows: Sequence[_Row]) -> None:
    """Insert rows that all have the same columns."""
    if not rows:
        return
    if connection.dialect.name == "postgresql":
        names = tuple(rows[0])
        connection.execute(_insert_words(table, names), _arrays(table, names, rows))
    else:
        connection.execute(sa.insert(table), list(rows))


def update_rows(
    connection: sa.Connection, table: sa.Table, keys: Sequence[str], rows: Sequence[_Row]
) -> None:
    """Change columns of rows.

    Args:
        keys: By which columns the rows are known; the others are changed.
        rows: All with the same columns.
    """
    if not rows:
        return
    names = tuple(rows[0])
    words = _update_words(table, tuple(keys), names, connection.dialect.name)
    if connection.dialect.name == "postgresql":
        connection.execute(words, _arrays(table, names, rows))
    else:
        connection.execute(words, [{f"_{name}": row[name] for name in names} for row in rows])


def put_rows(
    connection: sa.Connection,
    table: sa.Table,
    rows: Sequence[_Row],
    *,
    added: Sequence[str] = (),
) -> None:
    """Insert rows, or change those that are there by their primary key.

    Args:
        rows: All with the same columns; none twice.
        added: Columns of which the value is added to what is there; the others are replaced.
    """
    if not rows:
        return
    names = tuple(rows[0])
    words = _put_words(table, names, tuple(added), connection.dialect.name)
    if connection.dialect.name == "postgresql":
        connection.execute(words, _arrays(table, names, rows))
    else:
        connection.execute(words, list(rows))


def among(
    connection: sa.Connection, columns: Sequence[sa.ColumnElement[Any]], rows: Sequence[Any]
) -> sa.ColumnElement[bool]:
    """Return whether columns have the values of one of some rows; a file takes few hundred.

    Args:
        rows: A tuple for each; plain values where it is one column.
    """
    if connection.dialect.name != "postgresql":
        return (columns[0] if len(columns) == 1 else sa.tuple_(*columns)).in_(rows)
    values = [rows] if len(columns) == 1 else list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [
        sa.cast(sa.literal(list(each), postgresql.ARRAY(of.type)), postgresql.ARRAY(of.type))
        for of, each in zip(columns, values, strict=True)
    ]
    if len(columns) == 1:
        return columns[0] == sa.any_(arrays[0])
    given = sa.func.unnest(*arrays).table_valued(
        *(sa.column(f"c{place}", of.type) for place, of in enumerate(columns))
    )
    return sa.tuple_(*columns).in_(sa.select(given.render_derived()))


def _arrays(table: sa.Table, names: Sequence[str], rows: Sequence[_Row]) -> dict[str, list[Any]]:
    arrays = {f"_{name}": [row[name] for row in rows] for name in names}
    for name in names:
        if isinstance(table.c[name].type, sa.Float):
            # An array has values of one type, and a whole number is another.
            values = arrays[f"_{name}"]
            arrays[f"_{name}"] = [None if value is None else float(value) for value in values]
    return arrays


def _given(table: sa.Table, names: tuple[str, ...]) -> Any:
    """Return rows of arrays as a table for a server to read from."""
    arrays = [
        sa.cast(sa.bindparam(f"_{name}"), postgresql.ARRAY(table.c[name].type)) for name in names
    ]
    columns = (sa.column(name, table.c[name].type) for name in names)
    return sa.func.unnest(*arrays).table_valued(*columns).render_derived()


def _from_arrays(insert: Any, table: sa.Table, names: tuple[str, ...]) -> Any:
    given = _given(table, names)
    return insert.from_select(list(names), sa.select(*(given.c[name] for name in names)))


@cache
def _insert_words(table: sa.Table, names: tuple[str, ...]) -> Any:
    return _from_arrays(sa.insert(table), table, names)


@cache
def _update_words(
    table: sa.Table, keys: tuple[str, ...], names: tuple[str, ...], kind: str
) -> sa.Update:
    changed = [name for name in names if name not in keys]
    given: Any = (
        _given(table, names).alias("given").c
        if kind == "postgresql"
        else {name: sa.bindparam(f"_{name}") for name in names}
    )
    mine = (table.c[name] == given[name] for name in keys)
    return sa.update(table).where(*mine).values({name: given[name] for name in changed})


@cache
def _put_words(
    table: sa.Table, names: tuple[str, ...], added: tuple[str, ...], kind: str
) -> sa.Insert:
    keys = [column.name for column in table.primary_key]
    if kind == "postgresql":
        insert: Any = _from_arrays(postgresql.insert(table), table, names)
    else:
        insert = sqlite.insert(table)
    changed = {
        name: table.c[name] + insert.excluded[name] if name in added else insert.excluded[name]
        for name in names
        if name not in keys
    }
    words: sa.Insert = insert.on_conflict_do_update(index_elements=keys, set_=changed)
    return words
