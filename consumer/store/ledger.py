"""The ledger: what a group has already done, one row per event and handler.

The row that says *done* is written first, in the transaction that the handler then writes in: two processes that
have the same event meet at its key, and the second waits until the first has committed or given up. Partitions are
named directly, so a claim locks one of them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, LiteralString, cast

from psycopg import sql
from psycopg.pq import TransactionStatus

from consumer.decide.horizon import Ring, slot_of
from consumer.store.at_once import FirstStatement
from consumer.store.stored import Connection
from outbox.event import Event
from outbox.records import record
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


@record
class Entry:
    """What the ledger is to say of one handler. *attempts* counts those that were spent.

    *token* is that of the claim it ends; without one it ends none, and a claim that runs stays as it is.
    """

    handler: str
    state: State
    attempts: int
    token: int | None = None


@record
class Claim:
    """What is to be taken, and by whom.

    *mark*: the transaction is set up for a session, with the tenant setting and this mark. *is_stored*: the event
    comes from its work row, so its own retry is no duplicate; *is_replay*: nor is what was dead.
    """

    event: Event
    handler: str
    mark: str | None = None
    is_stored: bool = False
    is_replay: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statements:
    first: FirstStatement
    first_marked: FirstStatement
    claim: bytes
    claim_stored: bytes
    set_up: bytes
    read: bytes
    spent: bytes
    record: bytes
    reserve: bytes


# One statement sets the tenant and takes the row: a round trip each would cost a third of the throughput.
# Setting application_name is what lets the client see, without asking, that this transaction is still the one it
# began: the server reports the name at every change, and the old one comes back when the transaction ends.
_SET_UP: Final[LiteralString] = (
    "SELECT set_config({tenant_setting}, {tenant}, true), set_config({check_name}, {mark}, true)"
)
_SETTINGS: Final[LiteralString] = f"WITH settings AS MATERIALIZED ({_SET_UP})"
_INSERT: Final[LiteralString] = """
INSERT INTO {ledger} AS l (slot, group_name, event_id, handler, tenant, state, attempts)
SELECT {slot}, {group}, {event}, {handler}, {tenant}, 'done', 1 {source}
ON CONFLICT (event_id, group_name, handler)
"""
_NOTHING: Final[LiteralString] = "DO NOTHING RETURNING attempts"
# A replayed event counts from the beginning again.
_AGAIN: Final[LiteralString] = (
    "DO UPDATE SET state = 'done', updated_at = statement_timestamp(),"
    " attempts = CASE WHEN {is_replay} THEN 1 ELSE l.attempts + 1 END"
    " WHERE l.state = 'retry' OR (l.state = 'dead' AND {is_replay})"
    # Its handler was a leased one when a process died with it.
    " OR (l.state = 'running' AND {abandoned}) RETURNING attempts"
)
#: Whether nobody has the claim ``l`` any more. A claim from after this statement began is looked at another time: the
#: statement may not see the lease that covers it.
ABANDONED: Final[LiteralString] = """(l.updated_at < statement_timestamp() AND NOT EXISTS (
    SELECT FROM consumer.incarnation i WHERE i.id = l.incarnation AND i.expires_at > clock_timestamp()
))"""
_READ: Final[LiteralString] = "SELECT state FROM {ledger} WHERE event_id = %s AND group_name = {group} AND handler = %s"
_SPENT: Final[LiteralString] = """
SELECT attempts FROM {ledger} WHERE event_id = %s AND group_name = {group} AND handler = %s AND state = 'retry'
"""
# What is done stays done, whoever comes late with another answer.
_RECORD: Final[LiteralString] = """
INSERT INTO {ledger} AS l (slot, group_name, event_id, handler, tenant, state, attempts)
VALUES ({slot}, {group}, %(event)s, %(handler)s, %(tenant)s, %(state)s, %(attempts)s)
ON CONFLICT (event_id, group_name, handler) DO UPDATE SET
    state = excluded.state, attempts = excluded.attempts, updated_at = statement_timestamp()
WHERE l.state NOT IN ('done', 'skipped')
  AND CASE WHEN %(token)s::bigint IS NULL THEN l.state <> 'running' OR {abandoned} ELSE l.token = %(token)s END
RETURNING handler
"""
# For an event whose process died. A leased claim of it stays as it is, to be taken over, which says that it is unended.
_RESERVE: Final[LiteralString] = """
INSERT INTO {ledger} AS l (slot, group_name, event_id, handler, tenant, state, attempts)
SELECT {slot}, {group}, %s, handler, %s, 'retry', 0 FROM unnest(%s::text[]) handler ORDER BY handler
ON CONFLICT (event_id, group_name, handler) DO UPDATE SET
    updated_at = l.updated_at
WHERE l.state = 'running'
RETURNING handler
"""


class Ledger:
    """The ledger of one group. Every method works in the transaction that *connection* is in, or begins one."""

    def __init__(self, *, group: str, ring: Ring) -> None:
        self._ring = ring
        self._statements = tuple(_statements(group, slot) for slot in range(ring.slots))

    async def claim(self, connection: Connection, claim: Claim) -> int | State:
        """Take the event for the handler: the attempt's number, from 1, or the state it is in already.

        What *claim* sets up holds until the transaction ends; ``is_marked`` asks for it. Waits while another
        transaction has the row.
        """
        event, statements = claim.event, self._of(claim.event)
        attempt = await self._take(connection, statements, claim)
        if attempt is not None:
            return attempt
        return await self._state(connection, event, claim.handler)

    async def begin(self, connection: Connection, claim: Claim) -> int:
        """Set the transaction up as ``claim`` does, and take nothing: the attempt's number, from 1."""
        if claim.mark is not None:
            values = {"tenant": claim.event.tenant, "mark": claim.mark}
            await connection.execute(self._of(claim.event).set_up, values)
        counts_on = claim.is_stored and not claim.is_replay
        return 1 + (await self.spent(connection, claim.event, claim.handler) if counts_on else 0)

    async def record(self, connection: Connection, event: Event, entries: Sequence[Entry]) -> dict[str, State]:
        """Write *entries*; returns what it left as it was, by handler, and the state that is in.

        That is what was done or skipped before, and what another process claims or has claimed since.
        """
        statement = self._of(event).record
        left: dict[str, State] = {}
        for entry in entries:
            cursor = await connection.execute(
                statement,
                {
                    "event": event.id,
                    "handler": entry.handler,
                    "tenant": event.tenant,
                    "state": entry.state.value,
                    "attempts": entry.attempts,
                    "token": entry.token,
                },
            )
            if await cursor.fetchone() is None:
                left[entry.handler] = await self._state(connection, event, entry.handler)
        return left

    async def spent(self, connection: Connection, event: Event, handler: str) -> int:
        """How many attempts of *handler* at *event* were spent before, as far as is recorded."""
        cursor = await connection.execute(self._of(event).spent, (event.id, handler))
        row = await cursor.fetchone()
        return 0 if row is None else int(row[0])

    async def _state(self, connection: Connection, event: Event, handler: str) -> State:
        row = await (await connection.execute(self._of(event).read, (event.id, handler))).fetchone()
        return State.RUNNING if row is None else State(row[0])  # none: its twin gave up between the two statements

    async def reserve(self, connection: Connection, event: Event, handlers: Sequence[str]) -> frozenset[str]:
        """Say of *handlers* that a row has *event* for them; returns those of which nothing else was known.

        Waits while another transaction has the row of one.
        """
        cursor = await connection.execute(self._of(event).reserve, (event.id, event.tenant, list(handlers)))
        return frozenset([row[0] for row in await cursor.fetchall()])

    async def _take(self, connection: Connection, statements: _Statements, claim: Claim) -> int | None:
        event = claim.event
        if not claim.is_stored:
            first = statements.first if claim.mark is None else statements.first_marked
            if await first.can_run(connection):
                values = [str(event.id), claim.handler, event.tenant]
                found = await first.run(connection, values if claim.mark is None else [*values, claim.mark])
                return None if found is None else int(found[0])
        cursor = await connection.execute(
            statements.claim_stored if claim.is_stored else statements.claim,
            {
                "event": event.id,
                "handler": claim.handler,
                "tenant": event.tenant,
                "mark": claim.mark or "",
                "is_replay": claim.is_replay,
            },
        )
        row = await cursor.fetchone()
        return None if row is None else cast("int", row[0])

    def _of(self, event: Event) -> _Statements:
        return self._statements[slot_of(event.ledger_time, self._ring)]


@lru_cache(maxsize=1024)
def mark_of(group: str, handler: str) -> str:
    """What ``pg_stat_activity`` calls a transaction of *handler*: text that the server repeats unchanged."""
    return _NOT_REPEATED.sub("?", f"{group}/{handler}")[:_MARK_BYTES_MAX]


def is_marked(connection: Connection, mark: str | None) -> bool:
    """Whether *connection* is still in the transaction, unfailed, that claimed with *mark*. Asks nobody.

    Without a mark nobody but us had the connection, and only its state is looked at.
    """
    pgconn = connection.pgconn
    if pgconn.transaction_status != TransactionStatus.INTRANS:
        return False
    return mark is None or pgconn.parameter_status(_CHECK_NAME.encode()) == mark.encode()


_FROM_SETTINGS: Final = sql.SQL("FROM settings")
_NAMES: Final = ("event", "handler", "tenant", "mark", "is_replay")
_TYPES: Final = ("uuid", "text", "text", "text")


def _statements(group: str, slot: int) -> _Statements:
    by_name = {name: sql.Placeholder(name) for name in _NAMES}
    by_place = {name: sql.SQL(f"${number}") for number, name in enumerate(_NAMES, 1)}

    # Rendered once: psycopg would compose them anew at every execution.
    def render(
        text: LiteralString, values: Mapping[str, sql.Composable] = by_name, *, source: sql.Composable = _FROM_SETTINGS
    ) -> bytes:
        parts = {
            "ledger": sql.Identifier("consumer", f"ledger_{slot}"),
            "slot": sql.Literal(slot),
            "group": sql.Literal(group),
            "tenant_setting": sql.Literal(TENANT_SETTING),
            "check_name": sql.Literal(_CHECK_NAME),
            "abandoned": sql.SQL(ABANDONED),
        }
        return sql.SQL(text).format(**parts, **values, source=source).as_bytes(None)

    return _Statements(
        first=FirstStatement(
            name=f"fairpost_claim_{slot}",
            types=", ".join(_TYPES[:3]),
            body=render(_INSERT + _NOTHING, by_place, source=sql.SQL("")),
        ),
        first_marked=FirstStatement(
            name=f"fairpost_claim_marked_{slot}",
            types=", ".join(_TYPES),
            body=render(_SETTINGS + _INSERT + _NOTHING, by_place),
        ),
        claim=render(_SETTINGS + _INSERT + _NOTHING),
        claim_stored=render(_SETTINGS + _INSERT + _AGAIN),
        set_up=render(_SET_UP),
        read=render(_READ),
        spent=render(_SPENT),
        record=render(_RECORD),
        reserve=render(_RESERVE),
    )
