"""Which code may take a work row: the one that reads its version of the payload, as long as any such code runs.

What a process's code cannot handle it would bury, so it is left to those who can, its retries too. What nobody can
any more is taken by anybody after a while (``unknown.give_up``), and becomes a dead letter that people see.
"""

from typing import Final

from psycopg import sql

from consumer.store.stored import Stored
from outbox.wire import DATA_VERSION

_DIGITS_MAX: Final = 9

_MINE: Final = sql.SQL("(SELECT knows FROM consumer.incarnation WHERE id = %(owner)s)")
#: True of the rows ``w`` that *owner*'s code reads, and may take. Old code beside new passes over the new code's whole
#: backlog with each claim: what its type's newest version rules out is not looked at any closer.
KNOWN: Final = sql.SQL("""
    (w.needs_version IS NULL OR CASE
        WHEN NOT {mine} ? w.type OR w.needs_version > ({mine} -> w.type -> '' ->> 1)::integer THEN false
        ELSE consumer.knows({mine}, w.type, w.handlers, w.needs_version) END)
""").format(mine=_MINE)


def needs_version(stored: Stored, handlers: tuple[str, ...] | None) -> int | None:
    """The version that code must read to have *stored* handled by *handlers*; a void is for any code."""
    version = stored.message.headers.get(DATA_VERSION)
    if handlers == () or not (isinstance(version, str) and version.isdecimal() and len(version) <= _DIGITS_MAX):
        return None
    return int(version)
