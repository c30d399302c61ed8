"""``outbox tenant offboard`` on real RabbitMQ: nothing is lost that is published, held or handed back meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import aiormq
import psycopg
import pytest
from aiormq.abc import DeliveredMessage
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.rabbitmq.connection import Address
from outbox.errors import TransientError
from outbox.event import Event, Tier
from outbox.naming import Lane
from outbox.shell.database import connect
from outbox.topology import QueueKind
from outbox_admin.offboarding import Leaving, find, keep, offboard
from outbox_admin.offboarding_rabbitmq import RabbitDesk
from relay.announcement import LANE_TYPE
from relay.rabbitmq.publisher import RabbitPublisher
from tests.integration.relay.running import App, Running, emit, start, value
from tests.support.rabbit_queues import rabbit_rig
from tests.support.wait import until

LANE = Lane(group="default", tier=Tier.STANDARD, tenant="acme")
NEIGHBOUR = Lane(group="default", tier=Tier.STANDARD, tenant="neighbour")
QUEUE_KINDS: list[QueueKind] = ["classic", "quorum"]
_DEFER = """
    insert into outbox.deferred (group_name, state, category, reason, attempts, due_at, id, bucket, tier, tenant,
        tenant_hash, type, data_version, source, content_type, payload)
    select 'default', 'retry', 'unroutable', 'r', 1, now() + interval '1 hour', gen_random_uuid(), bucket, tier, tenant,
        tenant_hash, type, data_version, source, content_type, payload from outbox.event where tenant = %s limit 1"""
INSERT = text("INSERT INTO effect (note) VALUES (:note)")


class Reader:
    """A consumer of lanes as ours is: it leaves a lane that is gone when it has nothing of it in hand."""

    def __init__(self, connection: aiormq.abc.AbstractConnection) -> None:
        self.connection = connection
        self.events: list[UUID] = []
        self.held: list[DeliveredMessage] = []
        self.is_holding = False
        self.told: list[bytes] = []
        self._channel: aiormq.abc.AbstractChannel
        self._tags: dict[str, str] = {}

    async def open(self) -> None:
        self._channel = await self.connection.channel()
        await self._channel.basic_qos(prefetch_count=10)
        await self._channel.basic_consume("outbox.directory.default", self._hear, no_ack=True)

    @property
    def is_open(self) -> bool:
        return not self._channel.is_closed

    async def settle(self) -> None:
        """Acknowledge what is held, and go on."""
        self.is_holding = False
        held, self.held = self.held, []
        for message in held:
            await self._take(message)

    async def _hear(self, message: DeliveredMessage) -> None:
        assert message.header.properties.message_type == LANE_TYPE
        queue = message.body.decode().partition('"queue": "')[2].partition('"')[0]
        self.told.append(message.body)
        if b'"is_gone": true' not in message.body:
            if queue not in self._tags:
                self._tags[queue] = (await self._channel.basic_consume(queue, self._take)).consumer_tag or ""
        elif queue in self._tags:
            await until(lambda: not self.held, deadline_s=20)
            await self._channel.basic_cancel(self._tags.pop(queue))

    async def _take(self, message: DeliveredMessage) -> None:
        if self.is_holding and message.routing_key == LANE.routing_key:
            self.held.append(message)
            return
        self.events.append(UUID(message.header.properties.message_id))
        assert message.delivery_tag is not None
        await self._channel.basic_ack(message.delivery_tag)


@pytest.fixture(params=QUEUE_KINDS)
def kind(request: pytest.FixtureRequest) -> QueueKind:
    found: QueueKind = request.param
    return found


@pytest.fixture
async def relay(migrated_database: str, vhost: str, kind: QueueKind) -> AsyncIterator[Running]:
    """A relay at work on real queues."""
    running = start(migrated_database, RabbitPublisher(url=vhost, queue_kind=kind))
    await running.owns()
    yield running
    await running.crash()


@pytest.fixture
def app(migrated_database: str) -> Iterator[App]:
    with psycopg.connect(migrated_database) as connection:
        yield connection
        connection.rollback()


@asynccontextmanager
async def reading(vhost: str, *, is_holding: bool = False) -> AsyncIterator[Reader]:
    async with aiormq.connect(vhost) as connection:
        reader = Reader(connection)
        reader.is_holding = is_holding
        await reader.open()
        yield reader


async def remove(url: str, vhost: str, *, groups: Sequence[str] = ("default",), within_s: float = 40.0) -> list[str]:
    """Off-board the tenant; return what was told."""
    told: list[str] = []
    async with await connect(url, application_name="test") as connection:
        lanes = await find(connection, LANE.tenant, groups=groups)
        assert [one.lane.group for one in lanes] == list(groups)
        address = Address(url=vhost, name="test")
        await offboard(
            connection, lambda: RabbitDesk.opened(address), lanes, actor="tester", within_s=within_s, tell=told.append
        )
    return told


def _emitted(app: App, lane: Lane, count: int) -> list[UUID]:
    events = emit(app, lane.tenant, count=count)
    app.commit()
    return events


async def _has_first_events(app: App, relay: Running) -> list[UUID]:
    events = _emitted(app, LANE, 5) + _emitted(app, NEIGHBOUR, 5)
    await relay.sees(lambda gauges: gauges.confirmed >= 10, what="the first events to be published")
    return events


async def test_a_tenant_off_boarded_while_the_relay_publishes_to_it_loses_nothing(
    migrated_database: str, vhost: str, relay: Running, app: App
) -> None:
    """rabbitmq/rabbitmq-server#4746, #1877: what is published to a queue that is being deleted is confirmed."""
    events = await _has_first_events(app, relay)
    async with reading(vhost) as reader:
        removing = asyncio.create_task(remove(migrated_database, vhost))

        def has_ended() -> bool:
            events.extend(_emitted(app, LANE, 3) + _emitted(app, NEIGHBOUR, 1))
            return removing.done()

        await until(has_ended, deadline_s=60, every_s=0.02)
        assert removing.result()[-1] == f"{LANE.queue}: deleted"
        events += _emitted(app, LANE, 3)
        await until(lambda: set(events) <= set(reader.events), deadline_s=30, what="every event, through the new lane")
        assert reader.is_open
        assert relay.gauges.broker_losses == 0
    assert value(app, "select array_agg(action order by id) from outbox.audit") == [
        "tenant.offboard",
        "tenant.offboarded",
    ]


async def test_a_queue_with_a_message_in_hand_is_not_deleted_and_no_connection_closed(
    migrated_database: str, vhost: str, relay: Running, app: App
) -> None:
    """rabbitmq/rabbitmq-server#10543, #10724: a conditional delete closed the connection, or took what was in hand."""
    events = await _has_first_events(app, relay)
    async with reading(vhost, is_holding=True) as reader:
        await until(lambda: len(reader.held) == 5, what="five events in hand")
        with pytest.raises(TransientError, match="0 messages and 1 consumers; run it again to go on"):
            await remove(migrated_database, vhost, within_s=5)
        more = _emitted(app, LANE, 2) + _emitted(app, NEIGHBOUR, 2)
        await until(lambda: set(more[2:]) <= set(reader.events), what="the neighbour's events meanwhile")
        await reader.settle()
        told = await remove(migrated_database, vhost)
        assert told[-1] == f"{LANE.queue}: deleted"
        await until(lambda: set(events + more) <= set(reader.events), deadline_s=30, what="every event")
        assert len(reader.events) == len(set(reader.events))
        assert reader.is_open
        assert relay.gauges.broker_losses == 0


async def test_what_comes_back_from_a_consumer_that_died_is_handled_first(
    migrated_database: str, vhost: str, relay: Running, app: App
) -> None:
    events = await _has_first_events(app, relay)
    async with reading(vhost, is_holding=True) as first:
        await until(lambda: len(first.held) == 5, what="five events in hand")
        removing = asyncio.create_task(remove(migrated_database, vhost))
        await until(lambda: b"is_gone" in first.told[-1], deadline_s=30, what="the consumer to be told")
    async with reading(vhost) as second:
        await until(removing.done, deadline_s=60)
        told = removing.result()
        assert f"{LANE.queue}: 5 messages came back; its consumers are told of it again" in told
        assert told[-1] == f"{LANE.queue}: deleted"
        assert set(events[:5]) <= set(second.events)


@pytest.mark.parametrize("kind", ["quorum"], indirect=True)
async def test_an_off_boarding_whose_relay_dies_and_that_is_killed_itself_loses_nothing_and_ends_when_run_again(
    migrated_database: str, vhost: str, kind: QueueKind, relay: Running, app: App
) -> None:
    events = await _has_first_events(app, relay)
    app.execute(_DEFER, (LANE.tenant,))
    app.commit()
    async with reading(vhost, is_holding=True) as reader:
        await until(lambda: len(reader.held) == 5, what="five events in hand")
        first = asyncio.create_task(remove(migrated_database, vhost))
        await until(lambda: _is_marked(app), what="the lane to be marked")
        await relay.crash()
        events += _emitted(app, LANE, 3)
        other = start(migrated_database, RabbitPublisher(url=vhost, queue_kind=kind))
        await until(lambda: b"is_gone" in reader.told[-1], deadline_s=30, what="the consumers to be told")
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        events += _emitted(app, LANE, 3)
        again = asyncio.create_task(remove(migrated_database, vhost))
        await reader.settle()
        await until(again.done, deadline_s=60)
        assert again.result()[-2:] == [
            f"{LANE.queue}: deleted",
            f"{LANE.queue}: 1 deferred events are dead now: see outbox deferred list",
        ]
        events += _emitted(app, LANE, 3)
        await until(lambda: set(events) <= set(reader.events), deadline_s=30, what="every event, through the new lane")
        await other.crash()
    assert value(app, "select state from outbox.deferred") == "dead"


def _is_marked(app: App) -> bool:
    marked = value(app, "select count(*) from outbox.lane where leaving_at is not null")
    app.commit()
    return marked == 1


@pytest.mark.parametrize("kind", ["quorum"], indirect=True)
async def test_an_off_boarding_that_is_taken_back_lets_events_flow_again(
    migrated_database: str, vhost: str, relay: Running, app: App
) -> None:
    events = await _has_first_events(app, relay)
    with pytest.raises(TransientError, match="5 messages and 0 consumers"):
        await remove(migrated_database, vhost, within_s=4)
    events += _emitted(app, LANE, 3)
    async with await connect(migrated_database, application_name="test") as connection:
        lanes: list[Leaving] = list(await find(connection, LANE.tenant, groups=["default"]))
        assert [one.is_marked for one in lanes] == [True]
        await keep(connection, lanes, actor="tester")
    async with reading(vhost) as reader:
        await until(lambda: set(events) <= set(reader.events), deadline_s=20, what="every event")
        assert len(reader.events) == len(events)


@pytest.mark.parametrize("kind", ["classic"], indirect=True)
async def test_a_replay_that_may_publish_to_the_queue_is_waited_for(
    migrated_database: str, vhost: str, relay: Running, app: App
) -> None:
    """It publishes on a connection of its own, and knows of no marks."""
    await _has_first_events(app, relay)
    app.execute(
        """insert into outbox.replay (group_name, from_at, to_at, per_s, events, requested_by, after_hash, last_hash)
           values ('default', now(), now(), 1, 1, 'tester', 0, 0)"""
    )
    app.commit()
    async with reading(vhost) as reader:
        with pytest.raises(TransientError, match="0 messages and 0 consumers and a replay that is under way"):
            await remove(migrated_database, vhost, within_s=6)
        app.execute("update outbox.replay set ended_at = now()")
        app.commit()
        assert (await remove(migrated_database, vhost))[-1] == f"{LANE.queue}: deleted"
        assert reader.is_open


async def test_without_a_relay_nothing_is_deleted(migrated_database: str, vhost: str, app: App) -> None:
    app.execute("insert into outbox.lane (group_name, tier, tenant) values ('default', 1, 'acme')")
    app.commit()
    with pytest.raises(TransientError, match="want its relay to say that it publishes nothing to it, got no word"):
        await remove(migrated_database, vhost, within_s=1)


async def test_our_own_consumers_finish_what_they_have_and_find_the_lane_when_it_is_made_again(
    migrated_database: str, vhost: str, kind: QueueKind, app: App
) -> None:
    app.execute("select outbox.add_group('billing')")
    app.commit()
    begun, may_end = list[UUID](), asyncio.Event()
    relay = start(migrated_database, RabbitPublisher(url=vhost, queue_kind=kind))
    async with rabbit_rig(migrated_database, vhost, kind) as rig:

        @rig.consumer.on("order.placed")
        async def bill(event: Event, session: AsyncSession) -> None:
            begun.append(event.id)
            await may_end.wait()
            await session.execute(INSERT, {"note": str(event.id)})

        for _ in range(2):
            await rig.start()
        await relay.owns(128)
        events = _emitted(app, LANE, 5)
        await rig.until(lambda: begun, what="an attempt to begin")
        with pytest.raises(TransientError, match=r"billing.standard.acme: want it empty and left"):
            await remove(migrated_database, vhost, groups=["billing"], within_s=5)
        may_end.set()
        told = await remove(migrated_database, vhost, groups=["billing"])
        assert told[-1] == "outbox.lane.billing.standard.acme: deleted"
        assert rig.value("select count(*) from consumer.lane where tenant = 'acme'") == 0
        events += _emitted(app, LANE, 3)
        await rig.until(lambda: len(rig.effects()) == len(events), deadline_s=30, what="every effect")
        assert sorted(rig.effects()) == sorted(map(str, events))
    await relay.crash()
