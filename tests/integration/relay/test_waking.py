"""A relay that listens reads the log at once when told of a commit; polling stays the truth."""

from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Outbox
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
    assert app.execute(_LISTENERS).fetchall() == []


def ended(app: App, sessions: str) -> int:
    found = app.execute(f"select count(pg_terminate_backend(pid)) from ({sessions}) s").fetchone()
    app.commit()
    assert found is not None
    return int(str(found[0]))
