"""The ends that supervisors bring about: SIGTERM, a second one, SIGKILL; in the middle of work."""

import asyncio
import signal
import time
from urllib.parse import urlsplit, urlunsplit

import aiormq
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Tier
from tests.scenarios import audit, bank, caller, valve
from tests.scenarios.world import World
from tests.support.proxy import Proxy
from tests.support.wait import until

_VALVE = "tests.scenarios.valve:consumer"
_TENANTS = ("acme", "globex", "initech")
_RUNNING = "outbox_consumer_running"
_IN_HAND = "outbox_consumer_in_hand"


def _note(world: World, *, count: int) -> None:
    engine = world.engine()
    with Session(engine) as session, session.begin():
        for tenant in _TENANTS:
            bank.note(session, tenant=tenant, tier=Tier.STANDARD, count=count)
    engine.dispose()


def _post(world: World, *, accounts: int) -> None:
    """Post once to each of so many accounts of one tenant."""
    engine = world.engine()
    with Session(engine) as session, session.begin():
        for number in range(accounts):
            name = f"account {number}"
            session.execute(sa.insert(bank.account).values(tenant="acme", name=name, number=0))
            bank.post(session, tenant="acme", name=name, tier=Tier.STANDARD)
    engine.dispose()


async def test_sigterm_lets_what_runs_finish_and_hands_back_the_rest_uncharged(world: World) -> None:
    """taskiq-python/taskiq#380, JasperFx/wolverine#4213: work that had not begun was lost, or charged, at a shutdown;
    Bogdanp/dramatiq#148: what had just succeeded came again.
    """
    world.execute(valve.MAKE)
    _post(world, accounts=8)
    relay = world.relay()
    first = world.consumer(_VALVE, slots="4")
    claimed = "SELECT count(*) FROM consumer.work WHERE owner IS NOT NULL"
    await world.until_value(claimed, 8, what="all postings to be tried once, and claimed for the next time")
    _note(world, count=20)

    async def is_full() -> bool:
        return await first.metric(_RUNNING) == 2 and await first.metric(_IN_HAND) > 8

    await until(is_full, deadline_s=30.0, what="handlers to run, and rows and deliveries to wait")
    first.process.terminate()
    await first.until_unready()
    assert (await first.ask("/live"))[0] == 200
    assert first.process.is_running()
    assert world.value("SELECT count(*) FROM effect") == 0
    world.execute(valve.OPEN)
    assert await first.process.ended(deadline_s=20.0) == 0
    assert world.value("SELECT count(*) FROM effect") == 2
    assert world.value(claimed) == 0
    assert world.rows("SELECT attempts, count(*) FROM consumer.work GROUP BY 1") == [(1, 6)]

    second = world.consumer(_VALVE)
    await world.until_value("SELECT count(*) FROM effect", 68)
    assert [await relay.end(), await second.end()] == [0, 0]
    assert audit.effects(world) == audit.GOOD
    assert await audit.left_over(world) == audit.NOTHING
    assert world.rows("SELECT attempt, count(*) FROM effect GROUP BY 1 ORDER BY 1") == [(1, 60), (2, 8)]
    assert second.said("delivery settled", outcome="duplicate") == []


async def test_a_second_sigterm_ends_the_consumer_at_once_and_its_work_is_done_by_the_next(world: World) -> None:
    world.execute(valve.MAKE)
    _note(world, count=5)
    relay = world.relay()
    first = world.consumer(_VALVE)
    await first.until_ready()
    await until(lambda: first.metric(_RUNNING), deadline_s=30.0, what="handlers to run")
    first.process.terminate()
    await first.process.line('"draining"')
    first.process.terminate()
    assert await first.process.ended(deadline_s=8.0) == 75
    await _next_one_does_it_all(world, 15)
    assert await relay.end() == 0


async def test_a_handler_that_outlasts_the_drain_is_rolled_back_and_handled_by_the_next(world: World) -> None:
    world.execute(valve.MAKE)
    _note(world, count=5)
    relay = world.relay()
    first = world.consumer(_VALVE, drain_s="0.5")
    await first.until_ready()
    await until(lambda: first.metric(_RUNNING), deadline_s=30.0, what="handlers to run")
    began = time.monotonic()
    assert await first.end() == 0
    assert time.monotonic() - began < 8.0
    await _next_one_does_it_all(world, 15)
    assert await relay.end() == 0


async def _next_one_does_it_all(world: World, count: int) -> None:
    assert world.value("SELECT count(*) FROM effect") == 0
    world.execute(valve.OPEN)
    second = world.consumer(_VALVE)
    await world.until_value("SELECT count(*) FROM effect", count)
    assert await second.end() == 0
    assert world.rows("SELECT DISTINCT attempt FROM effect") == [(1,)]
    assert audit.effects(world) == audit.GOOD


async def test_a_leased_handler_that_wakes_after_its_lease_is_fenced_and_says_so(world: World) -> None:
    """riverqueue/river#1302: a process that stood still woke, and overwrote what its successor had done meanwhile."""
    world.execute(f"{valve.MAKE}; {caller.MAKE}")
    engine = world.engine()
    with Session(engine) as session, session.begin():
        bank.note(session, tenant="acme", tier=Tier.STANDARD)
    engine.dispose()
    relay = world.relay()
    frozen = world.consumer("tests.scenarios.caller:consumer")
    await world.until_value("SELECT count(*) FROM call", 1, what="the handler to run")
    frozen.process.freeze()
    other = world.consumer("tests.scenarios.caller:consumer")
    await world.until_value("SELECT count(*) FROM call", 2, what="another process to take over")
    world.execute(valve.OPEN)
    await world.until_value("SELECT state FROM consumer.ledger", "done")
    frozen.process.thaw()
    await frozen.process.line("claim lost")
    assert [await relay.end(), await frozen.end(), await other.end()] == [0, 0, 0]
    (first, second) = world.rows("SELECT token, attempt FROM call ORDER BY token")
    assert world.rows("SELECT state, token, attempts FROM consumer.ledger") == [("done", second[0], 2)]
    assert (first[1], second[1]) == (2, 2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_relay_ended_in_mid_batch_leaves_nothing_stuck(world: World, number: signal.Signals) -> None:
    """janbjorge/pgqueuer#630, #475: jobs that were under way at a shutdown stayed picked for ever."""
    _note(world, count=1_500)
    # Slowly, or all would be published before the signal comes.
    first = world.relay(window="100", chunk="10", persist_ms="200")
    await until(lambda: first.metric("outbox_relay_published_total"), deadline_s=30.0, what="the relay to publish")
    began = time.monotonic()
    if number is signal.SIGTERM:
        assert await first.end() == 0
        assert time.monotonic() - began < 10.0
    else:
        first.process.kill()
    messages = await _take_all(world)
    assert len(messages) < 4_500, "it was through before the signal came"

    second = world.relay()
    await until(lambda: second.metric("outbox_relay_published_total"), deadline_s=30.0, what="the relay to publish")

    async def is_published() -> bool:
        code, output = await world.command("outbox-relay", "status", "--json")
        assert code == 0, output
        return '"lag": []' in output and '"deferred": []' in output

    await until(is_published, deadline_s=30.0, what="everything to be published")
    messages += await _take_all(world)
    assert len(set(messages)) == 4_500
    # What was published and not yet persisted comes twice, a window at most; after a planned end nothing does.
    assert len(messages) - 4_500 <= (0 if number is signal.SIGTERM else 100)
    assert await second.end() == 0
    assert world.value("SELECT count(*) FROM outbox.bucket WHERE expires_at > clock_timestamp()") == 0


async def test_a_second_sigterm_ends_a_relay_that_waits_for_confirms(world: World) -> None:
    parts = urlsplit(world.rabbitmq_url)
    async with Proxy(host=parts.hostname or "", port=parts.port or 0, speaks="anything") as proxy:
        login = f"{parts.username}:{parts.password}@127.0.0.1:{proxy.port}"
        relay = world.relay(rabbitmq_url=urlunsplit(parts._replace(netloc=login)), drain_s="60", lease_s="30")
        await relay.until_ready()
        _note(world, count=1)
        await until(lambda: relay.metric("outbox_relay_confirmed_total"), deadline_s=20.0, what="lanes to stand")
        proxy.freeze()
        _note(world, count=10)
        await until(lambda: relay.metric("outbox_relay_in_flight"), deadline_s=20.0, what="confirms to be missing")
        relay.process.terminate()
        await relay.until_unready()
        assert relay.process.is_running()
        relay.process.terminate()
        assert await relay.process.ended(deadline_s=8.0) == 75
        proxy.cut()
        proxy.thaw()


async def _take_all(world: World) -> list[str]:
    """Empty the lanes; the ids of the messages that were in them."""
    found: list[str] = []
    async with aiormq.connect(world.rabbitmq_url) as connection:
        channel = await connection.channel()
        for queue, count in (await world.queues()).items():
            if not queue.startswith("outbox.lane."):
                continue
            done = asyncio.Event()
            wanted = len(found) + count

            async def take(
                message: aiormq.abc.DeliveredMessage, wanted: int = wanted, done: asyncio.Event = done
            ) -> None:
                found.append(message.header.properties.message_id or "")
                if len(found) == wanted:
                    done.set()

            if count:
                consumed = await channel.basic_consume(queue, take, no_ack=True)
                await asyncio.wait_for(done.wait(), 20.0)
                await channel.basic_cancel(consumed.consumer_tag or "")
    return found
