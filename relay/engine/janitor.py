"""Makes room in the ring: truncates slots whose events are older than the retention and published to every group.

Whether that is so is decided in the database, under the slot's lock. Every relay runs a janitor; nothing
depends on any of them being there, since a row is never refused for want of room.
"""

import asyncio
from typing import Final

import structlog

from outbox.errors import OutboxError
from relay.log import store

log = structlog.get_logger(__name__)

_CONNECT_S: Final = 5.0
_STATEMENT_S: Final = 300.0
# A relay that polls holds every slot's lock for a millisecond at a time: one that is busy is free a moment later.
_TRIES: Final = 20
_TRY_EVERY_S: Final = 0.05

_SLOTS: Final = """
SELECT substring(c.relname FROM '^event_([0-9]+)$')::integer
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'outbox.event'::regclass ORDER BY 1"""
# A row, of any kind, has pages: an empty slot needs neither lock nor question.
_HAS_PAGES: Final = "SELECT pg_relation_size(format('outbox.event_%%s', %s::integer)::regclass) > 0"
_TRUNCATE: Final = "SELECT outbox.truncate_slot(%s, make_interval(secs => %s))"


async def truncate_old_slots(url: str, *, retention_s: float) -> dict[int, str]:
    """Truncate every slot that may be; return what was answered for each that was not empty.

    The answers are ``truncated``, ``current``, ``retained`` (events younger than *retention_s*), ``unpublished``
    (events that a group has not been sent), and ``busy``.

    Raises:
        StoreUnavailable: the database cannot be reached.
        SchemaMissing, ConfigError: it is not ours to use.
    """
    connection = await store.connect(url, store.ANY_PLAN, connect_s=_CONNECT_S, statement_s=_STATEMENT_S)
    try:
        answers = {}
        async with store.deadline(connection, _STATEMENT_S):
            slots = [slot for (slot,) in await (await connection.execute(_SLOTS)).fetchall()]
        for slot in slots:
            async with store.deadline(connection, _STATEMENT_S):
                row = await (await connection.execute(_HAS_PAGES, (slot,))).fetchone()
            if row is not None and row[0]:
                answers[slot] = await _truncate(connection, slot, retention_s)
        return answers
    finally:
        await store.close(connection)


async def run_janitor(url: str, *, stop: asyncio.Event, retention_s: float, every_s: float) -> None:
    """Truncate what may be truncated, now and every *every_s*, until *stop*. It never fails: it tries again."""
    while not stop.is_set():
        try:
            answers = await truncate_old_slots(url, retention_s=retention_s)
        except OutboxError as error:
            # Rows still fit, and events still flow: nobody must stop for this.
            log.warning("janitor could not work", reason=str(error))
        else:
            truncated = [slot for slot, answer in answers.items() if answer == "truncated"]
            if truncated:
                log.info("slots truncated", slots=truncated)
        try:
            async with asyncio.timeout(every_s):
                await stop.wait()
        except TimeoutError:
            continue


async def _truncate(connection: store.Connection, slot: int, retention_s: float) -> str:
    answer = "busy"
    for _ in range(_TRIES):
        async with store.deadline(connection, _STATEMENT_S):
            row = await (await connection.execute(_TRUNCATE, (slot, retention_s))).fetchone()
        answer = str(row[0]) if row is not None else "busy"
        if answer != "busy":
            break
        await asyncio.sleep(_TRY_EVERY_S)
    return answer
