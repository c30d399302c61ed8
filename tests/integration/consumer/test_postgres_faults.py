"""Queues in PostgreSQL when their server is killed, stands still, or takes nothing."""

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from consumer.postgres.broker import postgres_broker
from consumer.postgres.wire import Address
from outbox.errors import BrokerUnavailable
from outbox_admin import migrate
from outbox_admin.embedded import PostgresNode
from relay.postgres.publisher import PostgresPublisher
from tests.contracts.publishers import confirmed_tags, lane, outgoing, settle
from tests.support.databases import fresh_database
from tests.support.inbox import RecordingInbox
from tests.support.processes import frozen
from tests.support.services import PrivatePostgres
from tests.support.wait import until


@pytest.fixture
def url(faulty_postgres: PostgresNode) -> Iterator[str]:
    with fresh_database(PrivatePostgres(node=faulty_postgres), "faulty") as dsn:
        migrate.upgrade(dsn, chains=("broker",))
        yield dsn
        faulty_postgres.start()


async def consuming(url: str) -> tuple[PostgresPublisher, RecordingInbox]:
    """A publisher that has put five events into a lane, and who has them in hand."""
    publisher, inbox = PostgresPublisher(url=url, connect_timeout_s=2.0, call_timeout_s=2.0), RecordingInbox()
    await publisher.open()
    assert not await publisher.declare([lane()])
    await publisher.send(outgoing(5, lane()))
    assert confirmed_tags(await settle(publisher, 5)) == [1, 2, 3, 4, 5]
    return publisher, inbox


async def test_a_killed_server_is_come_back_to_and_hands_out_again_what_was_in_hand(
    faulty_postgres: PostgresNode, url: str
) -> None:
    publisher, inbox = await consuming(url)
    broker = postgres_broker(Address(url=url, name="faulty", lease_s=3.0))
    await broker.attach(lane().queue, prefetch=10)
    await broker.start(inbox)
    first = [one.receipt for one in await inbox.received(5)]

    await asyncio.to_thread(faulty_postgres.kill)
    await until(lambda: not inbox.is_connected, what="the loss to be heard")
    with pytest.raises(BrokerUnavailable):
        await settle(publisher, 1)
    with pytest.raises(BrokerUnavailable):
        await publisher.open()
    await asyncio.to_thread(faulty_postgres.start)

    await inbox.received(10, deadline_s=20.0)
    assert inbox.ids[5:] == inbox.ids[:5]
    assert inbox.lost_epochs == [first[0].epoch]
    broker.settle(inbox.receipts()[5:])
    await publisher.open()
    assert not await publisher.declare([lane()])
    await publisher.send(outgoing(1, lane(), first_tag=6))
    assert confirmed_tags(await settle(publisher, 1)) == [6]
    await inbox.received(11)
    await publisher.close()
    await broker.stop()


async def test_a_server_that_stands_still_is_given_up_at_a_deadline(faulty_postgres: PostgresNode, url: str) -> None:
    publisher, inbox = await consuming(url)
    broker = postgres_broker(Address(url=url, name="faulty", lease_s=3.0))
    await broker.attach(lane().queue, prefetch=10)
    await broker.start(inbox)
    await inbox.received(5)
    with frozen(faulty_postgres.pid):
        await until(lambda: not inbox.is_connected, deadline_s=8.0, what="the consumer to give up")
        await publisher.send(outgoing(1, lane(), first_tag=6))
        with pytest.raises(BrokerUnavailable):
            await settle(publisher, 1, within_s=8.0)
        async with asyncio.timeout(5.0):
            await publisher.close()
    await inbox.up(times=2, deadline_s=20.0)
    await inbox.received(10, deadline_s=20.0)
    await broker.stop()


async def test_a_server_that_takes_nothing_blocks_the_publisher_until_it_does(
    faulty_postgres: PostgresNode, url: str
) -> None:
    publisher, _ = await consuming(url)
    sent: list[int] = []
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("alter system set default_transaction_read_only = on")
        admin.execute("select pg_reload_conf()")
        try:

            async def is_blocked() -> bool:
                """Whether it is; a session hears of the setting some time after it was reloaded."""
                if not publisher.is_blocked:
                    sent.append(6 + len(sent))
                    await publisher.send(outgoing(1, lane(), first_tag=sent[-1]))
                return publisher.is_blocked

            await until(is_blocked, what="the alarm")
        finally:
            admin.execute("set default_transaction_read_only = off")
            admin.execute("alter system reset default_transaction_read_only")
            admin.execute("select pg_reload_conf()")
    assert confirmed_tags(await settle(publisher, len(sent))) == sent
    assert not publisher.is_blocked
    await publisher.close()
