"""A relay that stands still for longer than its lease, sockets open, while another one works; and then goes on."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest

from outbox.errors import StoreUnavailable
from outbox.event import Tier
from outbox.naming import Lane
from relay.decide.backlog import Positions
from relay.decide.pieces import StreamPosition
from relay.log import positions, store
from tests.integration.relay.chaos import LIMITS, Victim
from tests.integration.relay.running import App, emit
from tests.integration.relay.slow_broker import SlowBroker
from tests.support.wait import until

TENANTS = [f"tenant-{number}" for number in range(40)]


@contextmanager
def two_relays(url: str) -> Iterator[tuple[SlowBroker, Victim, Victim]]:
    """Each on a thread of its own, so that one stands still alone."""
    broker = SlowBroker(1)
    victims = Victim(url, broker, 1), Victim(url, broker, 2)
    try:
        yield broker, *victims
    finally:
        for victim in victims:
            victim.stop()
        broker.close()


def arrivals(broker: SlowBroker) -> dict[str, list[UUID]]:
    """What reached each tenant's queue, in that order."""
    found: dict[str, list[UUID]] = {tenant: [] for tenant in TENANTS}
    for outgoing in broker.arrived():
        found[outgoing.lane.tenant].append(outgoing.event.id)
    return found


async def test_with_one_of_two_relays_frozen_in_mid_batch_each_key_keeps_its_order_and_other_keys_go_on(
    url: str, app: App
) -> None:
    """AlexeyRaga/kafkaflow-contrib#24; namastack/namastack-outbox#75, #204: what the frozen one held came out of
    order, and when it woke it published and noted down what another had taken over.
    """
    with two_relays(url) as (broker, frozen, awake):
        await until(lambda: frozen.gauges.owned == awake.gauges.owned == 32, what="a half each")
        sent = {tenant: emit(app, tenant, count=50) for tenant in TENANTS}
        app.commit()
        await until(lambda: frozen.gauges.published > 0, every_s=0.001, what="the first batch")
        frozen.freeze(4 * LIMITS.lease_s)
        for tenant in TENANTS:
            sent[tenant] += emit(app, tenant, count=5)
        app.commit()

        def complete() -> int:
            return sum(set(sent[tenant]) <= set(found) for tenant, found in arrivals(broker).items())

        stepped_at, published = frozen.gauges.stepped_at, frozen.gauges.published
        async with asyncio.timeout(LIMITS.lease_s + 2.0):
            await until(lambda: complete() >= 10, what="other keys to go on")
            await until(lambda: awake.gauges.owned == 64, what="a takeover")
        assert frozen.gauges.stepped_at == stepped_at, "it was not frozen for so long"
        await until(lambda: complete() == len(TENANTS), what="everything to arrive")
        # The server ends a transaction in which nothing is said for a third of the lease: then it finds that out first.
        await until(lambda: frozen.gauges.leases_lost + frozen.gauges.store_losses, what="the frozen one to find out")
        assert frozen.gauges.published - published <= LIMITS.batch
        await until(lambda: frozen.gauges.owned == awake.gauges.owned == 32, what="a half each again")
        found = arrivals(broker)
        assert {tenant: list(dict.fromkeys(found[tenant])) for tenant in TENANTS} == sent
        repeated = sum(len(found[tenant]) - len(sent[tenant]) for tenant in TENANTS)
        assert repeated <= LIMITS.window


@pytest.mark.parametrize("where", ["_write_findings", "_write_streams", "give_up"])
async def test_whoever_freezes_in_a_persist_keeps_no_bucket_locked_for_longer_than_a_wait(
    url: str, app: App, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    connection = await store.connect(url, store.FIXED_PLANS, connect_s=5.0, statement_s=1.0)
    write, taken = getattr(positions, where), list[str]()

    def frozen(*arguments: object, **options: object) -> object:
        # This call lets nothing else of the process go on, until others have its rows.
        app.execute("set lock_timeout = '10s'")
        app.execute("select from outbox.bucket for update")
        app.rollback()
        taken.append(where)
        return write(*arguments, **options)

    monkeypatch.setattr(positions, where, frozen)
    stream = StreamPosition(Lane("default", Tier.BULK, "acme"), 1, 1, "1:1:", "1:1:", 0, 1)
    place = ("default", 1)
    moved = Positions(bases=[(*place, "1:1:")], streams=[stream], caught_up=(), settled=0, settled_of={})
    findings = positions.Findings()
    with pytest.raises(StoreUnavailable):
        await positions.persist(connection, 0, moved, findings, owned=64, within_s=30.0, given_up=[place])
    assert taken == [where]
    await store.close(connection)
