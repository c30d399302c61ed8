"""RabbitMQ itself is killed, blocked and silent under the relay: an event counts as published when it was confirmed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import urlsplit, urlunsplit

import aio_pika
import pytest

from outbox.event import Tier
from outbox.naming import Lane
from outbox.topology import QueueKind
from relay.gauges import Gauges
from relay.limits import Limits
from relay.rabbitmq.publisher import RabbitPublisher
from relay.rabbitmq.topology import RabbitTopology
from tests.integration.relay.running import App, emit, start, value
from tests.support.containers import RabbitContainer
from tests.support.processes import frozen
from tests.support.proxy import Proxy
from tests.support.rabbit import RabbitNode
from tests.support.services import fresh_name
from tests.support.wait import until
from tests.support.withholding import WithholdingProxy, acks

Node = RabbitNode | RabbitContainer

LIMITS = Limits(lease_s=6.0, confirm_s=5.0, attempts=3)
EVENTS = 10_000


async def test_a_broker_killed_during_ten_thousand_publishes_loses_none(
    url: str, app: App, faulty_rabbit: Node
) -> None:
    """dotnetcore/CAP#730, abpframework/abp#24340, debezium-server PR#136: published meant written to the socket.

    zarusz/SlimMessageBus#459: the outage takes more tries than an event has, and costs none of them.
    """
    publisher = Tried(url=faulty_rabbit.url(), queue_kind="classic", connect_timeout_s=3.0)
    relay = start(url, publisher, limits=LIMITS)
    await relay.owns()
    expected = {str(one) for number in range(5) for one in emit(app, f"t{number}", count=EVENTS // 5)}
    app.commit()
    await relay.sees(lambda gauges: gauges.confirmed > EVENTS // 10)
    await asyncio.to_thread(faulty_rabbit.kill)
    await relay.sees(lambda gauges: gauges.broker_losses > 0)
    assert relay.gauges.owned == 64
    await until(lambda: publisher.tries > 5, what="more tries than an event has")
    confirmed = relay.gauges.confirmed
    await asyncio.to_thread(faulty_rabbit.start)
    await relay.sees(lambda gauges: gauges.confirmed > confirmed, deadline_s=10, what="confirms soon after its return")
    await relay.sees(lambda gauges: gauges.streams == 0 and gauges.in_flight == 0, deadline_s=60)
    await relay.hand_over()
    assert value(app, "select count(*) from outbox.deferred") == 0
    found = await _ids(faulty_rabbit.url())
    assert expected == set(found)
    assert len(found) <= EVENTS + LIMITS.window


@pytest.mark.parametrize("alarm", ["memory", "disk"])
async def test_a_blocked_broker_keeps_the_leases_and_publishing_resumes_by_itself(
    url: str, app: App, faulty_rabbit: Node, alarm: str
) -> None:
    """Juniper OpenSDN#129, mosquito/aio-pika#636: the client hides that it is blocked."""
    block: Callable[[], object] = faulty_rabbit.block
    unblock: Callable[[], object] = faulty_rabbit.unblock
    if alarm == "disk":
        block = partial(faulty_rabbit.ctl, "set_disk_free_limit", "1000000GB")
        unblock = partial(faulty_rabbit.ctl, "set_disk_free_limit", "10MB")
    publisher = RabbitPublisher(url=faulty_rabbit.url(), queue_kind="classic", connect_timeout_s=3.0)
    relay = start(url, publisher, limits=Limits(lease_s=3.0, confirm_s=5.0))
    await relay.owns()
    emit(app, "early")
    app.commit()
    await relay.sees(lambda gauges: gauges.confirmed == 1)
    await asyncio.to_thread(block)
    emit(app, "t0", count=10)
    app.commit()
    await relay.sees(lambda gauges: gauges.is_blocked)
    later = relay.gauges.stepped_at + 7.0
    await relay.sees(lambda gauges: gauges.stepped_at > later, what="two leases to pass")
    assert (relay.gauges.owned, relay.gauges.leases_lost, relay.gauges.deferred) == (64, 0, 0)
    await asyncio.to_thread(unblock)
    await relay.sees(lambda gauges: gauges.confirmed == 11, deadline_s=10, what="confirms soon after the alarm")
    assert relay.gauges.broker_losses == 0
    await relay.hand_over()


async def test_a_broker_that_stands_still_is_noticed_and_worked_with_again_within_ten_seconds_of_its_return(
    url: str, app: App, faulty_rabbit: RabbitNode
) -> None:
    """mosquito/aio-pika#588, #669: a frozen connection was never replaced. This one is idle: no confirm is missed."""
    publisher = Tried(url=faulty_rabbit.url(), queue_kind="classic", connect_timeout_s=1.0, heartbeat_s=1)
    relay = start(url, publisher, limits=LIMITS)
    await relay.owns()
    emit(app, "still")
    app.commit()
    await relay.sees(lambda gauges: gauges.confirmed == 1 and gauges.in_flight == 0)
    with frozen(faulty_rabbit.pid):
        await relay.sees(lambda gauges: gauges.broker_losses == 1, deadline_s=10, what="silence to be noticed")
        emit(app, "still", count=100)
        app.commit()
        await until(lambda: publisher.tries > 3, what="connections tried in vain")
        assert relay.gauges.owned == 64
    await relay.sees(lambda gauges: gauges.confirmed == 101, deadline_s=10, what="confirms soon after its return")
    assert value(app, "select count(*) from outbox.deferred") == 0
    await relay.hand_over()


async def test_confirms_withheld_for_many_deadlines_cost_no_attempt_and_repeat_a_window_each_time_at_most(
    url: str, app: App, faulty_rabbit: Node, vhost_name: str
) -> None:
    """Juniper OpenSDN#129, mosquito/aio-pika#636: whoever waits for a confirm without a deadline waits for ever."""
    limits = Limits(lease_s=3.0, confirm_s=1.0, attempts=3)
    async with WithholdingProxy(faulty_rabbit.url(vhost_name), withheld=acks) as proxy:
        publisher = RabbitPublisher(url=proxy.url, queue_kind="classic", connect_timeout_s=3.0)
        relay = start(url, publisher, limits=limits)
        await relay.owns()
        emit(app, "t0")
        app.commit()
        await relay.sees(lambda gauges: gauges.confirmed == 1)
        proxy.is_withholding = True
        for number in range(5):
            emit(app, f"t{number}", count=100)
        app.commit()
        await relay.sees(lambda gauges: gauges.broker_losses >= 4, what="more deadlines than an event has attempts")
        assert (relay.gauges.owned, relay.gauges.leases_lost, relay.gauges.deferred) == (64, 0, 0)
        proxy.is_withholding = False
        await relay.sees(lambda gauges: gauges.confirmed == 501, deadline_s=10, what="confirms soon after they flow")
        await relay.hand_over()
    found = await _ids(faulty_rabbit.url(vhost_name))
    assert len(set(found)) == 501
    assert len(found) <= 501 * (1 + relay.gauges.broker_losses)


class Tried(RabbitPublisher):
    """Counts how often it was opened."""

    tries = 0

    async def open(self) -> None:
        self.tries += 1
        await super().open()


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[tuple[str, Proxy]]:
    """The URL of the same vhost behind a proxy."""
    parts = urlsplit(url)
    async with Proxy(host=parts.hostname or "", port=parts.port or 0, speaks="anything") as proxy:
        login, _, _ = parts.netloc.rpartition("@")
        yield urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{proxy.port}")), proxy


@pytest.fixture
def vhost_name(faulty_rabbit: Node) -> str:
    """A fresh vhost: queues of the other kind are in nobody's way."""
    name = fresh_name("faulty")
    faulty_rabbit.management.add_vhost(name)
    return name


@asynccontextmanager
async def hanging(node: Node, vhost: str, tenant: str) -> AsyncIterator[None]:
    """The process of a tenant's queue is suspended: as one without a leader it takes nothing and answers nothing."""
    queue = Lane(group="default", tier=Tier.STANDARD, tenant=tenant).queue
    lookup = f'rabbit_amqqueue:lookup(rabbit_misc:r(<<"{vhost}">>, queue, <<"{queue}">>))'
    process = f"amqqueue:get_pid(element(2, {{ok, _}} = {lookup}))"
    await asyncio.to_thread(node.ctl, "eval", f"sys:suspend({process}).")
    try:
        yield
    finally:
        await asyncio.to_thread(node.ctl, "eval", f"sys:resume({process}).")


@pytest.mark.parametrize(("kind", "in_flight"), [("quorum", 200), ("quorum", 0), ("classic", 200)])
async def test_a_lane_that_hangs_when_the_connection_breaks_holds_back_no_other(
    url: str, app: App, faulty_rabbit: Node, vhost_name: str, kind: QueueKind, in_flight: int
) -> None:
    """The first publish of a channel to a quorum queue waits 65 s for its leader, and all behind it wait too."""
    async with proxied(faulty_rabbit.url(vhost_name)) as (address, proxy):
        publisher = RabbitPublisher(url=address, queue_kind=kind, connect_timeout_s=3.0)
        relay = start(url, publisher, limits=LIMITS)
        await relay.owns()
        bad, good = "bad", "good"
        emit(app, bad)
        emit(app, good)
        app.commit()
        await relay.sees(lambda gauges: gauges.confirmed == 2)
        async with hanging(faulty_rabbit, vhost_name, bad):
            emit(app, bad, count=in_flight)
            app.commit()
            await relay.sees(lambda gauges: gauges.in_flight == in_flight)
            proxy.cut()
            await relay.sees(lambda gauges: gauges.broker_losses == 1)
            emit(app, bad, count=10)
            emit(app, good, count=300)
            app.commit()
            await relay.sees(lambda gauges: gauges.confirmed == 302, deadline_s=10, what="the other lane's confirms")
            await relay.sees(lambda gauges: gauges.faulty_lanes == 1)
            assert relay.gauges.broker_losses == 1
            await until(
                lambda: value(app, "select array_agg(tenant) from outbox.stream") == [bad], what="its row alone"
            )
        await relay.sees(lambda gauges: gauges.in_flight == 0, deadline_s=10, what="its own confirms, once it answers")
        await relay.sees(lambda gauges: gauges.streams == 0)
        assert value(app, "select count(*) from outbox.deferred") == 0
        await relay.hand_over()


def confirmed(count: int) -> Callable[[Gauges], bool]:
    return lambda gauges: gauges.confirmed == count


async def test_a_lane_that_answers_a_declaration_and_takes_nothing_holds_back_no_other(
    url: str, app: App, faulty_rabbit: Node, vhost_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quorum queue that lost its leader in a kill may answer at once, and yet its first publish waits for 65 s."""

    async def seems_well(*_: object) -> bool:
        return True

    monkeypatch.setattr(RabbitTopology, "_has_leader", seems_well)
    async with proxied(faulty_rabbit.url(vhost_name)) as (address, proxy):
        publisher = RabbitPublisher(url=address, connect_timeout_s=3.0)
        relay = start(url, publisher, limits=Limits(lease_s=6.0, confirm_s=2.0))
        await relay.owns()
        for tenant in ("bad", "good"):
            emit(app, tenant)
        app.commit()
        await relay.sees(lambda gauges: gauges.confirmed == 2)
        async with hanging(faulty_rabbit, vhost_name, "bad"):
            bad = emit(app, "bad", count=20)
            app.commit()
            await relay.sees(lambda gauges: gauges.in_flight == 20)
            proxy.cut()
            await relay.sees(lambda gauges: gauges.broker_losses == 1)
            emit(app, "good", count=20)
            app.commit()
            await relay.sees(confirmed(22), what="the other lane's confirms")
            for tries in range(2):
                await relay.sees(lambda gauges: gauges.faulty_lanes == 1, what="its silence to be noticed")
                await relay.sees(lambda gauges: gauges.faulty_lanes == 0, what="another try of it")
                emit(app, "good", count=20)
                app.commit()
                await relay.sees(confirmed(42 + 20 * tries), what="the other lane's confirms")
                assert relay.gauges.faulty_lanes == 0, "the others waited for it"
            bad += emit(app, "bad", count=5)
            app.commit()
        await relay.sees(lambda gauges: gauges.confirmed >= 87, what="its own confirms, each try of them")
        await relay.sees(lambda gauges: gauges.streams == 0)
        assert relay.gauges.broker_losses == 1
        assert value(app, "select count(*) from outbox.deferred") == 0
        await relay.hand_over()
        arrived = list(dict.fromkeys(await _ids(faulty_rabbit.url(vhost_name), tenants=["bad"])))
        assert arrived[1:] == [str(one) for one in bad], "its order"


@pytest.mark.parametrize("kind", ["quorum", "classic"])
async def test_a_lane_that_hangs_under_a_large_burst_stops_the_others_no_longer_than_a_confirm_may_take(
    url: str, app: App, faulty_rabbit: Node, vhost_name: str, kind: QueueKind
) -> None:
    """A queue that takes nothing makes the broker read nothing more of the connection, whatever it is for."""
    limits = Limits(lease_s=6.0, confirm_s=2.0)
    publisher = RabbitPublisher(url=faulty_rabbit.url(vhost_name), queue_kind=kind, connect_timeout_s=3.0)
    relay = start(url, publisher, limits=limits)
    await relay.owns()
    bad, good = "bad", "good"
    emit(app, bad)
    emit(app, good)
    app.commit()
    await relay.sees(lambda gauges: gauges.confirmed == 2)
    async with hanging(faulty_rabbit, vhost_name, bad):
        emit(app, bad, count=5000)
        app.commit()
        await relay.sees(lambda gauges: gauges.in_flight >= 200, what="as much as a lane may have unconfirmed")
        emit(app, good, count=300)
        app.commit()
        await relay.sees(lambda gauges: gauges.confirmed == 302, deadline_s=10, what="the other lane's confirms")
        emit(app, good, count=300)
        app.commit()
        await relay.sees(lambda gauges: gauges.confirmed == 602, deadline_s=10, what="the other lane's confirms")
    await relay.sees(lambda gauges: gauges.streams == 0, deadline_s=20, what="its own confirms, once it answers")
    assert value(app, "select count(*) from outbox.deferred") == 0
    await relay.hand_over()


async def _ids(url: str, *, tenants: Sequence[str] = ("t0", "t1", "t2", "t3", "t4")) -> list[str]:
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        found = []
        for tenant in tenants:
            lane = Lane(group="default", tier=Tier.STANDARD, tenant=tenant)
            queue = await channel.get_queue(lane.queue)
            while (message := await queue.get(no_ack=True, fail=False)) is not None:
                found.append(message.message_id or "")
        return found


async def test_a_relay_that_dies_again_and_again_while_it_makes_many_lanes_is_finished_by_the_next(
    url: str, app: App, faulty_rabbit: Node, vhost_name: str
) -> None:
    """What was declared stays, whether or not it was written down, and the rest is declared at the same pace."""
    for number in range(40):
        emit(app, f"t{number}", count=2)
    app.commit()
    for deaths in range(3):
        publisher = RabbitPublisher(url=faulty_rabbit.url(vhost_name), connect_timeout_s=3.0)
        relay = start(url, publisher, limits=Limits(lease_s=3.0, confirm_s=5.0))
        if deaths < 2:
            await relay.sees(lambda gauges: gauges.confirmed > 0, what="a few lanes to be made")
            await relay.crash()
    await relay.sees(lambda gauges: gauges.streams == 0 and gauges.confirmed > 0, deadline_s=30, what="all lanes")
    assert value(app, "select count(*) from outbox.lane") == 40
    await relay.hand_over()
    found = await _ids(faulty_rabbit.url(vhost_name), tenants=[f"t{number}" for number in range(40)])
    assert len(set(found)) == 80
