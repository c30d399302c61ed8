"""The ledger's claims on a real database, the first statement of a transaction included."""

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from consumer.decide.horizon import Ring
from consumer.store.ledger import Claim, Entry, Ledger, State, is_marked, mark_of
from consumer.store.stored import Connection
from outbox.event import Event
from outbox.schema import TENANT_SETTING
from tests.support.engine import an_event

RING = Ring(slots=16, slot_seconds=86_400)
MARK = mark_of("billing", "bill")


@pytest.fixture
async def session(migrated_database: str) -> AsyncIterator[Connection]:
    """A connection as slots have it: the driver begins transactions by itself."""
    async with await psycopg.AsyncConnection.connect(migrated_database) as connection:
        yield connection


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(group="billing", ring=RING)


async def setting(connection: Connection) -> str | None:
    cursor = await connection.execute(f"SELECT current_setting('{TENANT_SETTING}', true)".encode())
    row = await cursor.fetchone()
    assert row is not None
    found: str | None = row[0]
    return found or None


@pytest.mark.parametrize(
    "tenant", ["acme", "o'brien", "a\\b", "x'); DROP TABLE consumer.work; --", "$1 %s {0} ;", "zoë 😀", "tab\tline\n"]
)
async def test_any_tenant_is_claimed_for_as_it_is(session: Connection, ledger: Ledger, tenant: str) -> None:
    event = an_event(tenant=tenant)
    assert await ledger.claim(session, Claim(event=event, handler="it's", mark=MARK)) == 1
    assert await setting(session) == tenant
    cursor = await session.execute("SELECT tenant, handler, state, attempts FROM consumer.ledger")
    assert await cursor.fetchall() == [(tenant, "it's", "done", 1)]


async def test_the_setting_and_the_mark_end_with_the_transaction(session: Connection, ledger: Ledger) -> None:
    for end in (session.commit, session.rollback):
        await ledger.claim(session, Claim(event=an_event(), handler="bill", mark=MARK))
        assert is_marked(session, MARK)
        await end()
        assert not is_marked(session, MARK)
        assert await setting(session) is None
        await session.rollback()


async def test_a_mark_does_not_outlive_a_transaction_that_another_followed(session: Connection, ledger: Ledger) -> None:
    await ledger.claim(session, Claim(event=an_event(), handler="bill", mark=MARK))
    await session.execute("ROLLBACK")
    await session.execute("SELECT 1")
    assert not is_marked(session, MARK)


async def test_a_row_that_is_there_says_its_state(session: Connection, ledger: Ledger) -> None:
    event = an_event()
    entries = [Entry(handler=state, state=state, attempts=2) for state in State]
    await ledger.record(session, event, entries)
    await session.commit()
    for state in State:
        assert await ledger.claim(session, Claim(event=event, handler=state)) is state
        await session.rollback()


@pytest.mark.parametrize(
    ("state", "is_replay", "expected"),
    [
        (State.RETRY, False, 3),
        (State.RETRY, True, 1),
        (State.DEAD, True, 1),
        (State.DEAD, False, State.DEAD),
        (State.DONE, True, State.DONE),
        (State.SKIPPED, True, State.SKIPPED),
    ],
)
async def test_a_work_row_claims_its_own_retry_and_a_replay_what_was_dead(
    session: Connection, ledger: Ledger, state: State, is_replay: bool, expected: int | State
) -> None:
    event = an_event()
    await ledger.record(session, event, [Entry(handler="bill", state=state, attempts=2)])
    claim = Claim(event=event, handler="bill", mark=MARK, is_stored=True, is_replay=is_replay)
    assert await ledger.claim(session, claim) == expected


async def test_what_is_done_stays_done_whoever_comes_late(session: Connection, ledger: Ledger) -> None:
    event = an_event()
    await ledger.claim(session, Claim(event=event, handler="bill"))
    left = await ledger.record(session, event, [Entry(handler="bill", state=State.RETRY, attempts=1)])
    assert left == {"bill": State.DONE}
    assert await ledger.claim(session, Claim(event=event, handler="bill")) is State.DONE


async def test_a_claim_waits_for_its_twin_and_sees_what_that_did(
    migrated_database: str, session: Connection, ledger: Ledger
) -> None:
    async with await psycopg.AsyncConnection.connect(migrated_database) as other:
        for end, expected in ((session.commit, State.DONE), (session.rollback, 1)):
            event = an_event()
            assert await ledger.claim(session, Claim(event=event, handler="bill")) == 1
            second = asyncio.create_task(ledger.claim(other, Claim(event=event, handler="bill")))
            await _blocked(migrated_database)
            await end()
            assert await second == expected
            await other.rollback()


async def test_a_pooler_that_forgets_what_was_prepared_is_noticed_once(session: Connection, ledger: Ledger) -> None:
    claim = Claim(event=an_event(), handler="bill")
    assert await ledger.claim(session, claim) == 1
    await session.rollback()
    await session.execute("DEALLOCATE ALL")
    await session.rollback()
    with pytest.raises(psycopg.errors.InvalidSqlStatementName):
        await ledger.claim(session, claim)
    await session.rollback()
    assert await ledger.claim(session, claim) == 1


async def test_a_first_statement_that_fails_says_why(
    migrated_database: str, session: Connection, ledger: Ledger
) -> None:
    event: Event = an_event()
    await ledger.claim(session, Claim(event=event, handler="bill"))
    await session.rollback()
    await session.execute("SET statement_timeout = '1ms'")
    await session.commit()
    async with await psycopg.AsyncConnection.connect(migrated_database) as other:
        await ledger.claim(other, Claim(event=event, handler="bill"))
        with pytest.raises(psycopg.errors.QueryCanceled):
            await ledger.claim(session, Claim(event=event, handler="bill"))


async def _blocked(database_url: str) -> None:
    """Wait until a session of this database waits for a lock."""
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as watcher:
        async with asyncio.timeout(10):
            while True:
                cursor = await watcher.execute(
                    "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
                )
                if await cursor.fetchone() is not None:
                    return
