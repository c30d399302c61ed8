"""Which code may take a work row: the one that reads its version of the payload, as long as any such code runs.

What a process's code cannot handle it would bury, so it is left to those who can, its retries too. If nobody lives who
can, it is taken all the same after a minute, and becomes a dead letter that people see.
"""

from typing import Final

from psycopg import sql

from consumer.store.stored import Stored
from outbox.wire import DATA_VERSION

_DIGITS_MAX: Final = 9

#: True of the rows ``w`` that *owner*'s code reads.
KNOWN: Final = sql.SQL("""
    (w.needs_version IS NULL OR consumer.knows(
        (SELECT knows FROM consumer.incarnation WHERE id = %(owner)s), w.type, w.handlers, w.needs_version))
""")

#: True of the rows ``w`` that *owner* may take.
MAY_TAKE: Final = sql.SQL("""
    ({known} OR (w.due_at < statement_timestamp() - make_interval(secs => 60) AND NOT EXISTS (
        SELECT FROM consumer.incarnation i
        WHERE i.group_name = w.group_name AND i.expires_at > statement_timestamp()
          AND consumer.knows(i.knows, w.type, w.handlers, w.needs_version))))
""").format(known=KNOWN)


def needs_version(stored: Stored, handlers: tuple[str, ...] | None) -> int | None:
    """The version that code must read to have *stored* handled by *handlers*; a void is for any code."""
    version = stored.message.headers.get(DATA_VERSION)
    if handlers == () or not (isinstance(version, str) and version.isdecimal() and len(version) <= _DIGITS_MAX):
        return None
    return int(version)
