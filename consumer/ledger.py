"""The ledger: what a group has already done, one row per event and handler.

The row that says *done* is written first, in the transaction that the handler then writes in: two processes that
have the same event meet at its key, and the second waits until the first has committed or given up. Partitions are
named directly, so a claim locks one of them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, LiteralString, cast
from uuid import UUID

from psycopg import sql
from psycopg.pq import TransactionStatus

from consumer.horizon import Ring, slot_of
from consumer.stored import Connection
from outbox.event import Event
from outbox.schema import TENANT_SETTING

_CHECK_NAME: Final = "application_name"
_MARK_BYTES_MAX: Final = 63
_NOT_REPEATED: Final = re.compile(r"[^ -~]")


class State(StrEnum):
    """How far a handler has come with an event."""

    RUNNING = "running"  # claimed, with no transaction open
    DONE = "done"
    RETRY = "retry"  # a work row has it
    DEAD = "dead"  # a dead letter has it
    SKIPPED = "skipped"  # the handler did not want it


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What the ledger is to say of one handler. *attempts* counts those that were spent."""

    handler: str
    state: State
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statements:
    claim: bytes
    claim_stored: bytes
    read: bytes
    record: bytes


# One statement sets the tenant and takes the row: a round trip each would cost a third of the throughput.
# Setting application_name is what lets the client see, without asking, that this transaction is still the one it
# began: the server reports the name at every change, and the old one comes back when the transaction ends.
_INSERT: Final[LiteralString] = """
WITH settings AS MATERIALIZED (
    SELECT set_config({tenant_setting}, %(tenant)s, true), set_config({check_name}, %(mark)s, true)
)
INSERT INTO {ledger} AS l (slot, group_name, event_id, handler, tenant, state, attempts)
SELECT {slot}, {group}, %(event)s, %(handler)s, %(tenant)s, 'done', 1 FROM settings
ON CONFLICT (event_id, group_name, handler)
"""
_CLAIM: Final[LiteralString] = _INSERT + "DO NOTHING RETURNING attempts"
# A replayed event counts from the beginning again.
_CLAIM_STORED: Final[LiteralString] = _INSERT + (
    "DO UPDATE SET state = 'done', updated_at = statement_timestamp(),"
    " attempts = CASE WHEN %(is_replay)s THEN 1 ELSE l.attempts + 1 END"
    " WHERE l.state = 'retry' OR (l.state = 'dead' AND %(is_replay)s) RETURNING attempts"
)
_READ: Final[LiteralString] = "SELECT state FROM {ledger} WHERE event_id = %s AND group_name = {group} AND handler = %s"
# What is done stays done, whoever comes late with another answer.
_RECORD: Final[LiteralString] = """
INSERT INTO {ledger} AS l (slot, group_name, event_id, handler, tenant, state, attempts)
VALUES ({slot}, {group}, %s, %s, %s, %s, %s)
ON CONFLICT (event_id, group_name, handler) DO UPDATE SET
    state = excluded.state, attempts = excluded.attempts, updated_at = statement_timestamp()
WHERE l.state NOT IN ('done', 'skipped')
RETURNING handler
"""


class Ledger:
    """The ledger of one group. Every method works in the transaction that *connection* is in, or begins one."""

    def __init__(self, *, group: str, ring: Ring) -> None:
        self._ring = ring
        self._statements = tuple(_statements(group, slot) for slot in range(ring.slots))

    async def claim(self, connection: Connection, event: Event, handler: str, *, mark: str) -> int | State:
        """Take *event* for *handler*: 1, its first attempt, or the state it is in already.

        The tenant setting and *mark* hold until the transaction ends; ``is_marked`` asks for the latter.
        Waits while another transaction has the row.
        """
        return await self._take(connection, event, handler, mark=mark, is_stored=False, is_replay=False)

    async def claim_stored(
        self, connection: Connection, event: Event, handler: str, *, mark: str, is_replay: bool
    ) -> int | State:
        """Take *event*, which comes from its work row, for *handler*: the attempt's number, from 1, or its state."""
        return await self._take(connection, event, handler, mark=mark, is_stored=True, is_replay=is_replay)

    async def record(self, connection: Connection, event: Event, entries: Sequence[Entry]) -> frozenset[str]:
        """Write *entries*; returns the handlers of which it was written, all but those done or skipped before."""
        statement = self._of(event).record
        written: set[str] = set()
        for entry in entries:
            cursor = await connection.execute(
                statement, (event.id, entry.handler, event.tenant, entry.state.value, entry.attempts)
            )
            written.update(row[0] for row in await cursor.fetchall())
        return frozenset(written)

    async def _take(
        self, connection: Connection, event: Event, handler: str, *, mark: str, is_stored: bool, is_replay: bool
    ) -> int | State:
        statements = self._of(event)
        values: dict[str, str | UUID | bool] = {
            "tenant": event.tenant,
            "mark": mark,
            "event": event.id,
            "handler": handler,
        }
        if is_stored:
            values["is_replay"] = is_replay
        cursor = await connection.execute(
            statements.claim_stored if is_stored else statements.claim, values, prepare=True
        )
        row = await cursor.fetchone()
        if row is not None:
            return cast("int", row[0])
        row = await (await connection.execute(statements.read, (event.id, handler))).fetchone()
        if row is None:  # its twin gave up between the two statements
            return State.RUNNING
        return State(row[0])

    def _of(self, event: Event) -> _Statements:
        return self._statements[slot_of(event.ledger_time, self._ring)]


def mark_of(group: str, handler: str) -> str:
    """What ``pg_stat_activity`` calls a transaction of *handler*: text that the server repeats unchanged."""
    return _NOT_REPEATED.sub("?", f"{group}/{handler}")[:_MARK_BYTES_MAX]


def is_marked(connection: Connection, mark: str) -> bool:
    """Whether *connection* is still in the transaction, unfailed, that claimed with *mark*. Asks nobody."""
    pgconn = connection.pgconn
    return (
        pgconn.transaction_status == TransactionStatus.INTRANS
        and pgconn.parameter_status(_CHECK_NAME.encode()) == mark.encode()
    )


def _statements(group: str, slot: int) -> _Statements:
    parts = {
        "ledger": sql.Identifier("consumer", f"ledger_{slot}"),
        "slot": sql.Literal(slot),
        "group": sql.Literal(group),
        "tenant_setting": sql.Literal(TENANT_SETTING),
        "check_name": sql.Literal(_CHECK_NAME),
    }
    # Rendered once: psycopg would compose them anew at every execution.
    return _Statements(
        claim=sql.SQL(_CLAIM).format(**parts).as_bytes(None),
        claim_stored=sql.SQL(_CLAIM_STORED).format(**parts).as_bytes(None),
        read=sql.SQL(_READ).format(**parts).as_bytes(None),
        record=sql.SQL(_RECORD).format(**parts).as_bytes(None),
    )
