"""The relay on a RabbitMQ that will not take single events, or single lanes: all else goes out, and it says why."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import aiormq
import pytest
from aiormq.exceptions import ChannelNotFoundEntity
from pamqp.commands import Basic
from structlog.testing import capture_logs

from outbox.event import Tier
from outbox.naming import Lane
from outbox.shell.database import connect
from outbox.topology import QueueKind
from relay.log import resolve
from relay.log.deferred_list import DeferredFilter
from relay.rabbitmq.publisher import RabbitPublisher
from tests.integration.relay.running import QUICK, App, Running, emit, start
from tests.support.containers import RabbitContainer
from tests.support.message_size import messages_up_to
from tests.support.rabbit import RabbitNode
from tests.support.services import fresh_name
from tests.support.wait import until

LIMITS = replace(QUICK, confirm_s=10.0, lease_s=6.0)
ODD = Lane(group="default", tier=Tier.STANDARD, tenant="odd")
EVEN = ODD._replace(tenant="even")
_LIMIT_BYTES = 4_000


@dataclass(frozen=True, slots=True)
class Stage:
    """A vhost of a node that the test may mistreat, and a connection to look into its queues."""

    node: RabbitNode | RabbitContainer
    url: str
    vhost: str
    connection: aiormq.Connection

    async def allow(self, user: str, *, configure: str = ".*", write: str = ".*") -> None:
        """Let *user* do in the vhost what these patterns match, and read everything."""
        allow = partial(self.node.management.allow, user, self.vhost, configure=configure, write=write)
        await asyncio.to_thread(allow)

    async def arrived(self, lane: Lane, events: Sequence[UUID]) -> list[UUID]:
        """Wait until *events* are in the lane's queue; all that came until then, in the queue's order."""
        found: list[UUID] = []

        async def are_there() -> bool:
            channel = await self.connection.channel()
            try:
                while not isinstance(
                    (got := await channel.basic_get(lane.queue, no_ack=True)).delivery, Basic.GetEmpty
                ):
                    found.append(UUID(got.header.properties.message_id))
            except ChannelNotFoundEntity:
                return False
            await channel.close()
            return set(events) <= set(found)

        await until(are_there, deadline_s=30.0, what=f"{len(events)} events of {lane.tenant}")
        return found

    async def delete(self, lane: Lane) -> None:
        """Delete the lane's queue."""
        channel = await self.connection.channel()
        await channel.queue_delete(lane.queue)
        await channel.close()

    async def replace(self, lane: Lane) -> None:
        """Delete the lane's queue, as somebody does who makes one of their own in its place."""
        channel = await self.connection.channel()
        await channel.queue_delete(lane.queue)
        await channel.queue_declare(lane.queue, durable=True, arguments={"x-max-length": 7})
        await channel.close()


@pytest.fixture
async def stage(faulty_rabbit: RabbitNode | RabbitContainer) -> AsyncIterator[Stage]:
    vhost = fresh_name("unsendable")
    faulty_rabbit.management.add_vhost(vhost)
    url = faulty_rabbit.url(vhost)
    async with aiormq.connect(url) as connection:
        yield Stage(faulty_rabbit, url, vhost, connection)


@asynccontextmanager
async def relaying(url: str, broker_url: str, *, queue_kind: QueueKind = "classic") -> AsyncIterator[Running]:
    relay = start(url, RabbitPublisher(url=broker_url, queue_kind=queue_kind), limits=LIMITS)
    try:
        await relay.owns()
        yield relay
    finally:
        await relay.crash()


async def test_one_event_that_the_broker_refuses_is_dead_with_its_reason_and_the_999_behind_it_go_out(
    url: str, app: App, stage: Stage
) -> None:
    """MassTransit PR#6216, ThreeDotsLabs/watermill#224: the one at the head was tried for ever, at full speed."""
    async with messages_up_to(stage.node, _LIMIT_BYTES), relaying(url, stage.url) as relay:
        first = emit(app, "odd")
        app.commit()
        assert await stage.arrived(ODD, first) == first
        emit(app, "odd", payload=bytes(_LIMIT_BYTES + 1))
        others = emit(app, "odd", count=999)
        app.commit()
        assert await stage.arrived(ODD, others) == others
        await until(partial(_deferred, app, [("dead", "too_large", 1)]), what="the offender to be dead")
        (reason,) = await _reasons(app)
        assert f"payload: want at most {_LIMIT_BYTES} bytes, got {_LIMIT_BYTES + 1}" in reason
        assert await _cpu_share(1.0) < 0.2

        # The broker has named its limit: whatever else is over it costs nobody a connection.
        losses = relay.gauges.broker_losses
        before = emit(app, "odd", count=100)
        emit(app, "odd", payload=bytes(5_000))
        after = emit(app, "odd", count=99)
        app.commit()
        assert await stage.arrived(ODD, [*before, *after]) == [*before, *after]
        await until(partial(_deferred, app, [("dead", "too_large", 1)] * 2), what="both offenders to be dead")
        assert relay.gauges.broker_losses == losses == 1


async def test_an_event_that_fails_again_and_again_backs_off_while_the_relay_rests(
    url: str, app: App, stage: Stage
) -> None:
    """MassTransit PR#6216, ThreeDotsLabs/watermill#224."""
    async with relaying(url, stage.url) as relay:
        await stage.arrived(ODD, _emitted(app, "odd"))
        await stage.replace(ODD)
        _emitted(app, "odd", count=3)
        others = _emitted(app, "even", count=96)
        await stage.arrived(EVEN, others)
        await until(partial(_deferred, app, [("retry", "queue_mismatch", 1)] * 3), what="three deferred events")
        published = relay.gauges.published
        assert await _cpu_share(1.5) < 0.2
        assert relay.gauges.published == published


@pytest.mark.parametrize("payload", [b"{}", b""], ids=["a body", "an empty body"])
async def test_events_whose_queue_was_deleted_are_published_once_it_is_declared_again(
    url: str, app: App, stage: Stage, payload: bytes
) -> None:
    """Particular/NServiceBus.RabbitMQ#135, gmr/aiorabbit#13: lost, or never settled."""
    async with relaying(url, stage.url) as relay:
        await stage.arrived(ODD, _emitted(app, "odd"))
        await stage.delete(ODD)
        events = _emitted(app, "odd", count=100, payload=payload)
        await relay.sees(lambda gauges: gauges.confirmed == 101)
        assert await stage.arrived(ODD, events) == events
        assert relay.gauges.returned > 0
        assert relay.gauges.deferred == 0


async def test_a_queue_that_came_back_with_other_arguments_is_named_with_both_and_holds_its_own_lane_only(
    url: str, app: App, stage: Stage
) -> None:
    """mosquito/aio-pika#565: such a queue kept a connection in an endless loop."""
    async with relaying(url, stage.url) as relay:
        await stage.arrived(ODD, _emitted(app, "odd"))
        await stage.arrived(EVEN, _emitted(app, "even"))
        await stage.replace(ODD)
        (back,) = _emitted(app, "odd")
        await until(partial(_deferred, app, [("retry", "queue_mismatch", 1)]), what="the event to be deferred")
        assert await _reasons(app) == [
            f"queue {ODD.queue}: want x-dead-letter-exchange outbox.refused, as our classic queues have,"
            " got one that exists with none"
        ]
        waiting = _emitted(app, "odd", count=50)
        await stage.arrived(EVEN, _emitted(app, "even", count=50))
        assert relay.gauges.broker_losses == 0
        await stage.delete(ODD)
        await stage.arrived(ODD, waiting)
        await _retry_all(url)
        await stage.arrived(ODD, [back])
        await until(partial(_deferred, app, []), what="the event to be forgotten")


async def test_a_lane_that_the_user_may_not_declare_is_forbidden_and_goes_on_once_it_may(
    url: str, app: App, stage: Stage
) -> None:
    async with _narrow_user(stage) as (user, narrow_url), relaying(url, narrow_url) as relay:
        await stage.arrived(ODD, _emitted(app, "odd"))
        await stage.allow(user, configure=r"^(?!outbox\.lane\..*odd)")
        await stage.delete(ODD)
        (back,) = _emitted(app, "odd")
        await until(partial(_deferred, app, [("retry", "forbidden", 1)]), what="the event to be deferred")
        (reason,) = await _reasons(app)
        assert reason.startswith(f"queue {ODD.queue}: want permission to declare and bind it, got ACCESS_REFUSED")
        await stage.arrived(EVEN, _emitted(app, "even", count=50))
        assert relay.gauges.broker_losses == 0
        await stage.allow(user)
        await stage.arrived(ODD, _emitted(app, "odd"))
        await _retry_all(url)
        await stage.arrived(ODD, [back])


async def test_a_user_who_may_not_bind_or_not_publish_blames_no_event_and_loses_none(
    url: str, app: App, stage: Stage
) -> None:
    async with _narrow_user(stage) as (user, narrow_url):
        for write, said in ((r"^(?!outbox\.lane)", "lane refused"), (r"^(?!outbox\.events)", "broker lost")):
            await stage.allow(user, write=write)
            with capture_logs() as logs:
                async with relaying(url, narrow_url) as relay:
                    events = _emitted(app, "odd", count=20)
                    await until(lambda: any(one["event"] == said for one in logs), what=said)  # noqa: B023
                    await stage.allow(user)
                    await stage.arrived(ODD, events)
                    assert relay.gauges.deferred == 0
            reasons = [one["reason"] for one in logs if one["event"] == said]
            assert "ACCESS_REFUSED" in reasons[0]


def _emitted(app: App, tenant: str, *, count: int = 1, payload: bytes = b"{}") -> list[UUID]:
    events = emit(app, tenant, count=count, payload=payload)
    app.commit()
    return events


def _deferred(app: App, wanted: Sequence[tuple[str, str, int]]) -> bool:
    rows = app.execute("select state, category, attempts from outbox.deferred").fetchall()
    app.commit()
    return rows == list(wanted)


async def _reasons(app: App) -> list[str]:
    rows = app.execute("select reason from outbox.deferred").fetchall()
    app.commit()
    return [str(reason) for (reason,) in rows]


async def _retry_all(url: str) -> None:
    async with await connect(url, application_name="test") as connection, connection.transaction():
        await resolve.retry(connection, DeferredFilter(), limit=100)


@asynccontextmanager
async def _narrow_user(stage: Stage) -> AsyncIterator[tuple[str, str]]:
    """A user with every permission, for the test to take some of them, and its address."""
    user = fresh_name("narrow")
    await asyncio.to_thread(stage.node.management.add_user, user, "secret")
    try:
        await stage.allow(user)
        parts = urlsplit(stage.url)
        yield user, urlunsplit(parts._replace(netloc=f"{user}:secret@{parts.netloc.rpartition('@')[2]}"))
    finally:
        await asyncio.to_thread(stage.node.management.delete_user, user)


async def _cpu_share(seconds: float) -> float:
    """How much of a core this process uses for so long, with nothing to do but the relay's."""
    began, used = time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    return (time.process_time() - used) / (time.monotonic() - began)


async def test_a_lane_over_which_the_broker_closes_the_connection_costs_the_others_one_now_and_then(
    url: str, app: App, stage: Stage
) -> None:
    """RabbitMQ 3.10 answers 541 to a quorum queue of whose members remains are left, and closes the connection."""
    if not stage.node.management.version().startswith("3."):
        pytest.skip("made with the insides of RabbitMQ 3")
    good, bad = EVEN, ODD
    queue = f'rabbit_misc:r(<<"{stage.vhost}">>, queue, <<"{bad.queue}">>)'
    async with relaying(url, stage.url, queue_kind="quorum") as relay:
        emit(app, bad.tenant)
        app.commit()
        await relay.sees(lambda gauges: gauges.confirmed == 1)
        await asyncio.to_thread(stage.node.ctl, "eval", f"rabbit_amqqueue:internal_delete({queue}, <<>>).")
        emit(app, bad.tenant)
        app.commit()
        await relay.sees(lambda gauges: gauges.broker_losses == 1)
        events: list[UUID] = []
        for _ in range(20):
            events.extend(emit(app, good.tenant))
            app.commit()
            await relay.sees(lambda gauges: gauges.confirmed > len(events), what="the other lane's confirm")
        assert relay.gauges.broker_losses < 5
        assert list(dict.fromkeys(await stage.arrived(good, events))) == events
