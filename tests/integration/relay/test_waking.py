"""A relay that listens reads the log at once when told of a commit; polling stays the truth."""

import asyncio
from dataclasses import replace

import psycopg
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Outbox
from outbox.event import Tier
from outbox.inprocess import InProcessBroker
from outbox.schema import WAKE_CHANNEL
from tests.integration.relay.running import QUICK, App, arrived, emit, running
from tests.support.wait import until

# A relay that has found nothing yet looks this seldom, so what comes sooner came by a wake.
SELDOM = replace(QUICK, idle_poll_s=60.0)

_LISTENERS = f"""
select pid from pg_stat_activity where datname = current_database() and query = 'LISTEN "{WAKE_CHANNEL}"'"""


async def test_a_relay_that_listens_publishes_at_the_word_and_not_at_its_next_poll(
    url: str, app: App, broker: InProcessBroker
) -> None:
    async with running(url, broker, limits=SELDOM, is_listening=True) as relay:
        await relay.sees(lambda gauges: gauges.is_listening, what="it to listen")
        await relay.sees(lambda gauges: gauges.persists > 0, what="it to be idle")
        events = emit(app)
        app.commit()
        app.execute(f"notify {WAKE_CHANNEL}")
        app.commit()
        await arrived(broker, events)


async def test_an_app_that_wakes_has_its_event_published_at_once(url: str, broker: InProcessBroker) -> None:
    """From the app's commit to the queue in far less time than the relay sleeps."""
    engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"))
    outbox = Outbox("/svc/shop", wake=True)
    async with running(url, broker, limits=SELDOM, is_listening=True) as relay:
        await relay.sees(lambda gauges: gauges.is_listening, what="it to listen")
        await relay.sees(lambda gauges: gauges.persists > 0, what="it to be idle")
        with Session(engine) as session, session.begin():
            event = outbox.emit(session, "shop.order.placed", {"order_id": 1}, tenant="acme")
        await arrived(broker, [event.id])
    engine.dispose()


async def test_wakes_without_end_keep_no_relay_with_a_full_window_from_its_confirms(
    url: str, app: App, broker: InProcessBroker
) -> None:
    async def wake() -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            while True:
                await connection.execute(f"notify {WAKE_CHANNEL}")

    # It takes in confirms together for as long as it would wait for a commit: longer than from one wake to the next.
    limits = replace(QUICK, window=50, busy_poll_s=0.2, persist_s=5.0, lease_s=60.0, confirm_s=1.0)
    async with running(url, broker, limits=limits, is_listening=True) as relay:
        await relay.sees(lambda gauges: gauges.is_listening, what="it to listen")
        tenants = [f"tenant-{number}" for number in range(10)]
        proven = {tenant: emit(app, tenant, tier=Tier.INTERACTIVE) for tenant in tenants}
        app.commit()
        await relay.sees(lambda gauges: gauges.confirmed == len(proven), what="each lane to be known")
        waking = asyncio.create_task(wake())
        try:
            await relay.sees(lambda gauges: gauges.wakes > 0, what="a wake")
            for tenant in tenants:
                emit(app, tenant, tier=Tier.INTERACTIVE, count=10)
            app.commit()
            await relay.sees(lambda gauges: gauges.confirmed >= 11 * len(tenants), what="all confirmed")
        finally:
            waking.cancel()
            await asyncio.gather(waking, return_exceptions=True)
        assert (relay.gauges.broker_losses, relay.gauges.resent) == (0, 0)


async def test_a_relay_whose_listening_connection_is_lost_listens_again_and_publishes_meanwhile(
    url: str, app: App, broker: InProcessBroker
) -> None:
    async with running(url, broker, is_listening=True) as relay:
        await relay.sees(lambda gauges: gauges.is_listening, what="it to listen")
        await until(lambda: ended(app, _LISTENERS) == 1, what="its connection to be ended")
        await relay.sees(lambda gauges: not gauges.is_listening, what="it to notice")
        events = emit(app)
        app.commit()
        await arrived(broker, events)
        await relay.sees(lambda gauges: gauges.is_listening, what="it to listen again")
        assert relay.gauges.store_losses == 0
        await relay.hand_over()
    # A server process ends a little after its connection does.
    await until(lambda: listeners(app) == [], what="no connection to listen any more")


def listeners(app: App) -> list[tuple[object, ...]]:
    found = app.execute(_LISTENERS).fetchall()
    app.commit()
    return found


def ended(app: App, sessions: str) -> int:
    found = app.execute(f"select count(pg_terminate_backend(pid)) from ({sessions}) s").fetchone()
    app.commit()
    assert found is not None
    return int(str(found[0]))
