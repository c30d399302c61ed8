"""RabbitMQ itself is killed, blocked and silent under the relay: an event counts as published when it was confirmed."""

import asyncio

import aio_pika

from outbox.event import Tier
from outbox.naming import Lane
from relay.limits import Limits
from relay.rabbitmq.publisher import RabbitPublisher
from tests.integration.relay.running import App, emit, start
from tests.support.containers import RabbitContainer
from tests.support.rabbit import RabbitNode

LIMITS = Limits(lease_s=6.0, confirm_s=5.0)
EVENTS = 10_000


async def test_a_broker_killed_during_ten_thousand_publishes_loses_none(
    url: str, app: App, faulty_rabbit: RabbitNode | RabbitContainer
) -> None:
    """dotnetcore/CAP#730, abpframework/abp#24340, debezium-server PR#136: published meant written to the socket."""
    publisher = RabbitPublisher(url=faulty_rabbit.url(), queue_kind="classic", connect_timeout_s=3.0)
    relay = start(url, publisher, limits=LIMITS)
    await relay.owns()
    expected = {str(one) for number in range(5) for one in emit(app, f"t{number}", count=EVENTS // 5)}
    app.commit()
    await relay.sees(lambda gauges: gauges.confirmed > EVENTS // 10)
    await asyncio.to_thread(faulty_rabbit.kill)
    await relay.sees(lambda gauges: gauges.broker_losses > 0)
    assert relay.gauges.owned == 64
    await asyncio.to_thread(faulty_rabbit.start)
    await relay.sees(lambda gauges: gauges.is_broker_up, deadline_s=30)
    await relay.sees(lambda gauges: gauges.streams == 0 and gauges.in_flight == 0, deadline_s=60)
    await relay.hand_over()
    found = await _ids(faulty_rabbit.url())
    assert expected == set(found)
    assert len(found) <= EVENTS + LIMITS.window


async def test_a_blocked_broker_keeps_the_leases_and_publishing_resumes_by_itself(
    url: str, app: App, faulty_rabbit: RabbitNode | RabbitContainer
) -> None:
    """mosquito/aio-pika#636: the client hides that it is blocked."""
    publisher = RabbitPublisher(url=faulty_rabbit.url(), queue_kind="classic", connect_timeout_s=3.0)
    relay = start(url, publisher, limits=Limits(lease_s=3.0, confirm_s=2.0))
    await relay.owns()
    emit(app, "early")
    app.commit()
    await relay.sees(lambda gauges: gauges.confirmed == 1)
    await asyncio.to_thread(faulty_rabbit.block)
    emit(app, "t0", count=10)
    app.commit()
    await relay.sees(lambda gauges: gauges.is_blocked)
    later = relay.gauges.stepped_at + 7.0
    await relay.sees(lambda gauges: gauges.stepped_at > later, what="two leases to pass")
    assert (relay.gauges.owned, relay.gauges.leases_lost, relay.gauges.deferred) == (64, 0, 0)
    await asyncio.to_thread(faulty_rabbit.unblock)
    await relay.sees(lambda gauges: gauges.confirmed == 11)
    assert relay.gauges.broker_losses == 0
    await relay.hand_over()


async def _ids(url: str) -> list[str]:
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        found = []
        for number in range(5):
            lane = Lane(group="default", tier=Tier.STANDARD, tenant=f"t{number}")
            queue = await channel.get_queue(lane.queue)
            while (message := await queue.get(no_ack=True, fail=False)) is not None:
                found.append(message.message_id or "")
        return found
