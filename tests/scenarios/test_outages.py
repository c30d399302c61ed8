"""Broker and database go away and come back under two running processes, and an app that goes on committing."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import count

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Tier
from outbox_admin.embedded import PostgresNode
from tests.scenarios import audit, bank
from tests.scenarios.world import World
from tests.support.containers import RabbitContainer
from tests.support.rabbit import RabbitNode
from tests.support.wait import until

_TENANTS = ("acme", "globex", "initech")
_WORKING_AGAIN_S = 10.0
_PACE_S = 0.02
_HANDLED = "SELECT count(*) FROM effect"


class App:
    """Commits postings one after another; while the database is away it commits none."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._is_over = threading.Event()
        self.committed = 0

    def run(self) -> None:
        """Go on until told to end."""
        with self._engine.begin() as connection:
            rows = [{"tenant": tenant, "name": "till", "number": 0} for tenant in _TENANTS]
            connection.execute(sa.insert(bank.account), rows)
        for number in count():
            if self._is_over.wait(_PACE_S):
                return
            with suppress(sa.exc.OperationalError):
                self._commit(_TENANTS[number % len(_TENANTS)])

    def end(self) -> None:
        """Commit no more."""
        self._is_over.set()

    def _commit(self, tenant: str) -> None:
        with Session(self._engine) as session, session.begin():
            bank.post(session, tenant=tenant, name="till", tier=Tier.STANDARD)
            bank.note(session, tenant=tenant, tier=Tier.INTERACTIVE)
        self.committed += 1


@asynccontextmanager
async def _committing(world: World) -> AsyncIterator[App]:
    engine = world.engine()
    app = App(engine)
    thread = asyncio.create_task(asyncio.to_thread(app.run))
    try:
        yield app
    finally:
        app.end()
        await thread
        engine.dispose()


def _begun(outage: str, postgres: PostgresNode, rabbit: RabbitNode | RabbitContainer) -> Callable[[], object]:
    """Begin *outage*; what is returned ends it."""
    match outage:
        case "broker restarted":
            rabbit.stop()
            return rabbit.start
        case "database restarted":
            postgres.stop()
            return postgres.start
        case "database killed":
            postgres.kill()
            return postgres.start
        case "broker refuses the login":
            rabbit.management.add_user("guest", "another", tags="administrator")
            rabbit.close_connections()
            owner = replace(rabbit.management, password="another")
            return lambda: owner.add_user("guest", "guest", tags="administrator")
        case _:
            return _locked_out(postgres)


def _locked_out(postgres: PostgresNode) -> Callable[[], object]:
    """Let nobody log in, and end every session but the one that can undo it."""
    owner = psycopg.connect(postgres.dsn(), autocommit=True)
    owner.execute("ALTER ROLE postgres VALID UNTIL 'yesterday'")
    owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datid > 0")

    def let_in() -> None:
        with owner:
            owner.execute("ALTER ROLE postgres VALID UNTIL 'infinity'")

    return let_in


@pytest.mark.parametrize(
    "outage",
    [
        "broker restarted",
        "broker refuses the login",
        "database restarted",
        "database killed",
        "database refuses the login",
    ],
)
async def test_after_an_outage_both_work_again_within_ten_seconds_and_no_attempt_was_spent(
    frail_world: World,
    faulty_postgres: PostgresNode,
    faulty_rabbit: RabbitNode | RabbitContainer,
    outage: str,
) -> None:
    """ag2ai/faststream#2758, celery/celery#10302: a consumer never came back after its broker had;
    zarusz/SlimMessageBus#459: an outage of the broker used up the attempts, and good messages were dead-lettered.
    """
    world = frail_world
    relay, consumer = world.relay(), world.consumer()
    async with _committing(world) as app:
        for service in (relay, consumer):
            await service.until_ready()
        await world.until_value("SELECT count(*) > 50 FROM effect", True, what="events to flow")

        end_it = await asyncio.to_thread(_begun, outage, faulty_postgres, faulty_rabbit)
        for service in (relay, consumer):
            await service.until_unready()
            assert (await service.ask("/live"))[0] == 200
        await asyncio.to_thread(end_it)
        began = time.monotonic()
        handled, committed = world.value(_HANDLED), app.committed
        for service in (relay, consumer):
            await service.until_ready(deadline_s=_WORKING_AGAIN_S)
        await until(lambda: app.committed > committed, deadline_s=_WORKING_AGAIN_S, what="the app to commit")
        await until(lambda: world.value(_HANDLED) > handled, deadline_s=_WORKING_AGAIN_S, what="events to be handled")
        took_s = time.monotonic() - began
        assert took_s < _WORKING_AGAIN_S, f"{outage}: working again after {took_s:.1f} s"
        # What came meanwhile is worked off while more comes.
        newest = world.value("SELECT max(number) FROM posting WHERE tenant = 'acme'")
        await world.until_value(
            f"SELECT EXISTS (SELECT FROM effect WHERE tenant = 'acme' AND number = {newest})", True, deadline_s=30.0
        )

    await world.until_value("SELECT (SELECT count(*) FROM posting) - (SELECT count(*) FROM effect)", 0)
    await world.until_idle(consumer)
    assert [await relay.end(), await consumer.end()] == [0, 0]
    assert audit.effects(world) == audit.GOOD
    assert await audit.left_over(world) == audit.NOTHING
    assert world.rows("SELECT DISTINCT attempt FROM effect") == [(1,)]
    print(f"{outage}: working again after {took_s:.1f} s, {app.committed} transactions")
