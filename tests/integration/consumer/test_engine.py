"""The whole engine on a real database and the in-process broker: what becomes of a delivery."""

import asyncio
from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer import Alert, AlertKind, Consumer, Context, DeadLetter, Drop, Outcome, Policy, Retry, Snooze
from consumer.store import pruning, work
from consumer.store.dead_list import DeadFilter
from consumer.store.ledger import Entry, Ledger, State
from outbox import Outbox, topology
from outbox.event import EventModel, Ordering, Tier
from outbox.wire import encode
from tests.integration.consumer.conftest import Connect
from tests.support.dead_letters import replay
from tests.support.engine import GROUP, TYPE, MemoryQueues, Rig, an_event, announcement, lane_of, memory_rig
from tests.support.waiting_events import new_work

INSERT = text("INSERT INTO effect (note) VALUES (:note)")
AT_ONCE = Policy(base_s=0.01, max_wait_s=0.02, budget=None, breaker=None)


class OrderPlaced(EventModel, type=TYPE):
    order_id: int


@pytest.fixture
async def rig(migrated_database: str) -> AsyncIterator[Rig]:
    async with memory_rig(migrated_database) as rig:
        yield rig


async def test_events_of_many_tenants_are_each_handled_once(rig: Rig) -> None:
    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": f"{ctx.tenant} {event.order_id}"})

    await rig.start()
    await rig.publish(*(an_event(number, tenant=f"t{number % 7}") for number in range(200)))
    await rig.until(lambda: rig.count("effect") == 200)
    await rig.until_settled()
    assert rig.value("SELECT count(DISTINCT note) FROM effect") == 200
    assert rig.value("SELECT count(*) FROM consumer.ledger WHERE state = 'done'") == 200


async def test_a_sync_and_an_async_handler_of_one_event_both_run_once(rig: Rig) -> None:
    """MassTransit/MassTransit#3543."""

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": f"bill {event.order_id}"})

    @rig.consumer.on(OrderPlaced)
    def thank(event: OrderPlaced, session: Session) -> None:
        session.execute(INSERT, {"note": f"thank {event.order_id}"})

    await rig.start()
    events = [an_event(number) for number in range(5)]
    await rig.publish(*events, *events)
    await rig.until_settled()
    assert sorted(rig.effects()) == sorted(f"{name} {number}" for number in range(5) for name in ("bill", "thank"))


async def test_a_failed_attempt_is_retried_and_is_no_duplicate_of_itself(rig: Rig) -> None:
    """JasperFx/wolverine#782, MassTransit/MassTransit#3998."""
    attempts: list[int] = []

    @rig.consumer.on(OrderPlaced, policy=AT_ONCE)
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> Outcome | None:
        attempts.append(ctx.attempt)
        await session.execute(INSERT, {"note": str(ctx.attempt)})
        return Retry() if ctx.attempt < 3 else None

    await rig.start()
    await rig.publish(an_event())
    await rig.until(lambda: rig.effects() == ["3"])
    assert attempts == [1, 2, 3]
    assert rig.states() == [("bill", "done", 3)]
    assert rig.count("consumer.work") == 0


async def test_a_duplicate_of_an_event_that_waits_for_its_retry_runs_nothing(rig: Rig) -> None:
    runs: list[int] = []

    @rig.consumer.on(OrderPlaced, policy=Policy(base_s=3600, max_wait_s=3600))
    async def bill(ctx: Context, event: OrderPlaced) -> None:
        runs.append(ctx.attempt)
        raise ConnectionError

    await rig.start()
    event = an_event()
    await rig.publish(event)
    await rig.until(lambda: rig.count("consumer.work") == 1)
    await rig.publish(event, event)
    await rig.until_settled()
    assert runs == [1]
    assert rig.states() == [("bill", "retry", 1)]


async def test_of_two_handlers_the_one_that_failed_is_tried_again_and_the_other_is_not(rig: Rig) -> None:
    runs: list[str] = []

    @rig.consumer.on(OrderPlaced, policy=AT_ONCE)
    async def bill(event: OrderPlaced, ctx: Context) -> None:
        runs.append("bill")
        if ctx.attempt == 1:
            raise ConnectionError

    @rig.consumer.on(OrderPlaced)
    async def thank(event: OrderPlaced) -> None:
        runs.append("thank")

    await rig.start()
    await rig.publish(an_event())
    await rig.until(lambda: rig.states() == [("bill", "done", 2), ("thank", "done", 1)])
    assert runs == ["bill", "thank", "bill"]


async def test_what_another_delivery_has_put_by_for_a_handler_outlives_the_failure_of_this_one(
    rig: Rig, connect: Connect
) -> None:
    may_fail = asyncio.Event()
    runs: list[str] = []

    @rig.consumer.on(OrderPlaced, policy=AT_ONCE)
    async def bill(event: OrderPlaced) -> None:
        runs.append("bill")
        if len(runs) == 1:
            await may_fail.wait()
            raise ConnectionError

    @rig.consumer.on(OrderPlaced, policy=AT_ONCE)
    async def thank(event: OrderPlaced) -> None:
        runs.append("thank")

    await rig.start()
    event = an_event()
    await rig.publish(event)
    await rig.until(lambda: runs == ["bill"])
    other = await connect()
    async with other.transaction():
        # What another process writes, to which it came again: one handler runs already, the other has failed there.
        failed = [Entry(handler="thank", state=State.RETRY, attempts=1)]
        await Ledger(group=GROUP, ring=await pruning.read_ring(other)).record(other, event, failed)
        await work.put(other, [new_work(event, handlers=("bill", "thank"), delay_s=3600)])
    may_fail.set()
    await rig.until_settled()
    assert rig.value("SELECT handlers FROM consumer.work") == ["bill", "thank"]
    assert rig.value("SELECT due_at > clock_timestamp() + interval '1 minute' FROM consumer.work")
    rig.execute("UPDATE consumer.work SET due_at = clock_timestamp()")
    await rig.until(lambda: rig.states() == [("bill", "done", 2), ("thank", "done", 2)])
    assert runs == ["bill", "bill", "thank"]


async def test_a_snoozed_event_comes_back_uncharged(rig: Rig) -> None:
    attempts: list[int] = []

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, ctx: Context) -> Outcome | None:
        attempts.append(ctx.attempt)
        return Snooze(for_s=0.01) if len(attempts) < 4 else None

    await rig.start()
    await rig.publish(an_event())
    await rig.until(lambda: rig.states() == [("bill", "done", 1)])
    assert attempts == [1, 1, 1, 1]


async def test_a_dropped_event_is_never_handled_again(rig: Rig) -> None:
    runs: list[int] = []

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced) -> Outcome | None:
        runs.append(event.order_id)
        return Drop(reason="not ours")

    await rig.start()
    event = an_event()
    await rig.publish(event, event)
    await rig.until_settled()
    assert (runs, rig.states()) == ([1], [("bill", "skipped", 1)])


async def test_an_unknown_type_is_a_dead_letter_and_is_handled_once_it_is_known(rig: Rig, connect: Connect) -> None:
    """riverqueue/river#1105, JasperFx/wolverine#4151, celery/celery#6485."""
    alerts: list[Alert] = []
    rig.consumer.on_alert(alerts.append)
    rig.limits = replace(rig.limits, replay_unknown_per_s=0)  # by hand
    old = await rig.start()
    await rig.publish(*(an_event(tenant=tenant) for tenant in ("acme", "acme", "zeta")))
    await rig.until(lambda: rig.count("consumer.dead") == 3)
    await rig.until_settled()
    assert rig.rows("SELECT DISTINCT category, handlers FROM consumer.dead") == [("unknown_type", [])]
    assert rig.count("consumer.ledger") == 0
    await rig.until(lambda: len(alerts) == 2)
    await old.drain()
    assert {(alert.kind, alert.tenant, alert.event_type) for alert in alerts} == {
        (AlertKind.UNKNOWN_TYPE, tenant, TYPE) for tenant in ("acme", "zeta")
    }

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": "billed"})

    await rig.start()
    resolved = await replay(await connect(), DeadFilter(group=GROUP), actor="operator")
    assert len(resolved.ids) == 3
    await rig.until(lambda: rig.effects() == ["billed"] * 3)
    await rig.until(lambda: rig.count("consumer.work") == 0)


async def test_events_of_a_type_that_is_ignored_leave_nothing_and_hold_nobody_up(rig: Rig) -> None:
    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": "billed"})

    class OrderRead(EventModel, type="orders.order.read", version=1):
        order_id: int

    rig.consumer.ignore("orders.order.seen", OrderRead)
    await rig.start()
    await rig.publish(
        replace(an_event(type="orders.order.read"), data_version=7),
        an_event(type="orders.order.seen", ordering=keyed(1)),
        an_event(ordering=keyed(2)),
    )
    await rig.until(lambda: rig.effects() == ["billed"])
    await rig.until_settled()
    assert (rig.count("consumer.dead"), rig.states()) == (0, [("bill", "done", 1)])


async def test_a_dead_letter_that_is_replayed_counts_its_attempts_anew(rig: Rig, connect: Connect) -> None:
    is_mended = False
    attempts: list[int] = []

    @rig.consumer.on(OrderPlaced, policy=replace(AT_ONCE, max_retries=1))
    async def bill(event: OrderPlaced, ctx: Context) -> Outcome | None:
        attempts.append(ctx.attempt)
        return None if is_mended else DeadLetter(reason="no such customer")

    await rig.start()
    await rig.publish(an_event())
    await rig.until(lambda: rig.count("consumer.dead") == 1)
    is_mended = True
    await replay(await connect(), DeadFilter(group=GROUP), actor="operator")
    await rig.until(lambda: rig.states() == [("bill", "done", 1)])
    await rig.until(lambda: rig.count("consumer.work") == 0)
    assert attempts == [1, 1]


async def test_a_replay_that_has_to_wait_for_another_process_is_one_still(rig: Rig, connect: Connect) -> None:
    is_mended = False

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced) -> Outcome | None:
        return None if is_mended else DeadLetter(reason="no such customer")

    await rig.start()
    await rig.publish(an_event())
    await rig.until(lambda: rig.count("consumer.dead") == 1)
    is_mended = True
    other = await connect()
    async with other.transaction():
        await other.execute("UPDATE consumer.ledger SET updated_at = updated_at")  # as a frozen process would have it
        await replay(await connect(), DeadFilter(group=GROUP), actor="operator")
        put_off = "SELECT count(*) FROM consumer.work WHERE owner IS NULL AND due_at > clock_timestamp()"
        await rig.until(lambda: rig.value(put_off) == 1)
    rig.execute("UPDATE consumer.work SET due_at = clock_timestamp()")
    await rig.until(lambda: rig.states() == [("bill", "done", 1)])


@pytest.mark.parametrize(
    ("payload", "category"),
    [
        (b'{"order_id": NaN}', "invalid"),
        (b'{"order_id": 1, "order_id": 2}', "invalid"),
        (b"[" * 10_000 + b"]" * 10_000, "invalid"),
        (b'{"order_id": "\\u0000"}', "invalid"),
        (b"\xff\xfe", "invalid"),
        (b'{"order_id": "many"}', "invalid"),
        (b"1" * (1024 * 1024 + 1), "oversized"),
    ],
    ids=["nan", "duplicate key", "too deep", "nul", "no utf-8", "wrong type", "too large"],
)
async def test_a_payload_that_can_never_be_read_is_dead_at_once(rig: Rig, payload: bytes, category: str) -> None:
    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced) -> None:
        raise AssertionError

    await rig.start()
    await rig.publish(an_event(payload=payload))
    await rig.until(lambda: rig.rows("SELECT category FROM consumer.dead") == [(category,)])
    await rig.until_settled()


async def test_an_event_in_another_tenants_lane_is_a_security_failure(rig: Rig) -> None:
    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced) -> None:
        raise AssertionError

    await rig.start()
    await rig.publish_messages(lane_of(an_event(tenant="victim")), [encode(an_event(tenant="attacker"))])
    await rig.until(lambda: rig.count("consumer.dead") == 1)
    assert rig.rows("SELECT category, tenant FROM consumer.dead") == [("security", "victim")]
    await rig.until_settled()


async def test_an_event_that_is_older_than_the_horizon_is_dead_rather_than_done_twice(rig: Rig) -> None:
    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced) -> None:
        raise AssertionError

    await rig.start()
    await rig.publish(an_event(age=timedelta(days=15)), an_event(2, age=timedelta(minutes=-6)))
    await rig.until(lambda: rig.count("consumer.dead") == 2)
    assert set(rig.rows("SELECT category FROM consumer.dead")) == {("outside_horizon",)}


async def test_a_secret_in_a_payload_reaches_no_dead_letters_text_and_no_log(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    canary = "canary-4711-secret"
    rig.execute("ALTER TABLE effect ADD CONSTRAINT once UNIQUE (note)")

    @rig.consumer.on("orders.secret")
    async def insert(event: dict[str, str], session: AsyncSession) -> None:
        for _ in range(2):  # PostgreSQL repeats the value in the detail of its error
            await session.execute(INSERT, {"note": event["card"]})

    @rig.consumer.on("orders.secret", policy=replace(AT_ONCE, max_retries=0))
    async def complain(event: dict[str, str]) -> None:
        raise RuntimeError(f"cannot charge {event['card']}")

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced) -> None: ...

    await rig.start()
    await rig.publish(an_event(type="orders.secret", payload=f'{{"card":"{canary}"}}'.encode()))
    await rig.publish(an_event(payload=f'{{"order_id":"{canary}"}}'.encode()))
    await rig.until(lambda: rig.count("consumer.dead") == 2)
    await rig.until_settled()
    told = str(
        rig.rows(
            "SELECT category, error_class, message, fingerprint, trace"
            " FROM consumer.dead LEFT JOIN consumer.dead_trace ON dead_id = id"
        )
    )
    assert canary not in told
    assert canary not in str(rig.rows("SELECT last_error FROM consumer.work"))
    output = capsys.readouterr()
    assert canary not in output.out + output.err


async def test_nothing_is_acked_as_done_without_its_ledger_row(rig: Rig) -> None:
    """Whatever a handler does to its transaction."""

    @rig.consumer.on(OrderPlaced, policy=replace(AT_ONCE, max_retries=1))
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        match event.order_id % 4:
            case 0:
                with pytest.raises(DBAPIError):
                    await session.execute(text("SELECT 1 / 0"))
            case 1:
                await session.commit()
            case 2:
                await session.execute(INSERT, {"note": "undone"})
                await session.rollback()
            case _:
                await session.execute(text("ROLLBACK"))
                await session.execute(INSERT, {"note": "stray"})

    await rig.start()
    await rig.publish(*(an_event(number) for number in range(8)))
    await rig.until(lambda: rig.count("consumer.dead") == 8)
    await rig.until_settled()
    assert rig.effects() == []
    assert rig.value("SELECT count(*) FROM consumer.ledger WHERE state = 'dead'") == 8


# ------------------------------------------------------------------ what handlers do


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_what_a_handler_emits_commits_with_it_and_names_its_cause(rig: Rig, kind: str) -> None:
    outbox = Outbox(source="/svc/billing")
    is_failing = True

    @rig.consumer.on(OrderPlaced, name="async", policy=AT_ONCE)
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> None:
        if kind == "async":
            outbox.emit(session, "billing.bill.sent", {"order_id": event.order_id})
            assert not (is_failing and ctx.attempt == 1)

    @rig.consumer.on(OrderPlaced, name="sync", policy=AT_ONCE)
    def bill_too(event: OrderPlaced, ctx: Context, session: Session) -> None:
        if kind == "sync":
            outbox.emit(session, "billing.bill.sent", {"order_id": event.order_id})
            assert not (is_failing and ctx.attempt == 1)

    await rig.start()
    event = replace(an_event(tenant="zoë"), actor="clerk", correlation_id="case 7")
    await rig.publish(event)
    await rig.until(
        lambda: rig.states() == [("async", "done", 1 + (kind == "async")), ("sync", "done", 1 + (kind == "sync"))]
    )
    rows = rig.rows("SELECT tenant, type, actor, causation_id, correlation_id FROM outbox.event")
    assert rows == [("zoë", "billing.bill.sent", "clerk", str(event.id), "case 7")]


async def test_the_tenant_setting_is_the_events_in_a_thousand_interleaved_events(rig: Rig) -> None:
    """spiralclass#59: a pooled connection that kept the last request's tenant."""
    setting = text("SELECT current_setting('app.current_tenant_id', true)")
    wrong: list[tuple[str, str | None]] = []

    @rig.consumer.on(OrderPlaced, policy=AT_ONCE)
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> None:
        seen = await session.scalar(setting)
        if seen != ctx.tenant:
            wrong.append((ctx.tenant, seen))
        if event.order_id % 7 == 0 and ctx.attempt == 1:
            raise ConnectionError

    @rig.consumer.on(OrderPlaced, policy=AT_ONCE)
    def thank(event: OrderPlaced, ctx: Context, session: Session) -> None:
        seen = session.scalar(setting)
        if seen != ctx.tenant:
            wrong.append((ctx.tenant, seen))
        if event.order_id % 5 == 0 and ctx.attempt == 1:
            raise ConnectionError

    await rig.start()
    await rig.publish(*(an_event(number, tenant=f"tenant {number % 100}") for number in range(500)))
    await rig.until(lambda: rig.count("consumer.ledger WHERE state = 'done'") == 1000, deadline_s=60)
    assert wrong == []
    left = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%' AND datname = current_database()"
    await rig.until(lambda: rig.value(left) == 0)


async def test_context_that_a_handler_sets_does_not_reach_the_next_event(rig: Rig) -> None:
    leaking: ContextVar[str] = ContextVar("leaking", default="")
    seen: list[str] = []

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced) -> None:
        seen.append(leaking.get())
        leaking.set("secret")

    await rig.start()
    await rig.publish(*(an_event(number) for number in range(30)))
    await rig.until(lambda: len(seen) == 30)
    assert set(seen) == {""}


# ------------------------------------------------------------------ order


def keyed(number: int, *, key: str = "order-1") -> Ordering:
    return Ordering(key=key, number=number, is_first=number == 1, previous_time=None)


async def test_keyed_events_are_handled_in_order_by_several_processes_however_they_arrive(rig: Rig) -> None:
    """namastack/namastack-outbox#9, MassTransit/MassTransit#3512."""

    @rig.consumer.on(OrderPlaced, policy=AT_ONCE)
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> None:
        if event.order_id % 7 == 3 and ctx.attempt == 1:
            raise ConnectionError
        assert ctx.event.ordering is not None
        await session.execute(INSERT, {"note": f"{ctx.event.ordering.key} {ctx.event.ordering.number}"})

    events = [an_event(number, ordering=keyed(number, key=f"k{key}")) for number in range(1, 21) for key in range(3)]
    for _ in range(3):
        await rig.start()
    await rig.publish(*events[1::2], *events[::2])
    await rig.until(lambda: rig.count("effect") == 60, deadline_s=40)
    for key in range(3):
        numbers = [int(note.split()[1]) for note in rig.effects() if note.startswith(f"k{key} ")]
        assert numbers == list(range(1, 21))
    await rig.until(lambda: rig.count("consumer.work") == 0)


async def test_a_dead_event_holds_its_key_and_no_other_until_it_is_replayed(rig: Rig, connect: Connect) -> None:
    is_mended = False
    alerts: list[Alert] = []
    rig.consumer.on_alert(alerts.append)

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> Outcome | None:
        if event.order_id == 1 and not is_mended:
            return DeadLetter(reason="no such customer")
        await session.execute(INSERT, {"note": f"{event.order_id}"})
        return None

    await rig.start()
    await rig.publish(
        an_event(1, ordering=keyed(1)), an_event(2, ordering=keyed(2)), an_event(9, ordering=keyed(1, key="other"))
    )
    await rig.until(lambda: rig.effects() == ["9"])
    await rig.until(lambda: rig.rows("SELECT reason FROM consumer.work") == [("waiting",)])
    # A hook is called by a thread of its own.
    await rig.until(lambda: alerts, what="an alert")
    assert [(alert.kind, alert.tenant, alert.event_type) for alert in alerts] == [(AlertKind.KEY_BLOCKED, "acme", TYPE)]
    is_mended = True
    await replay(await connect(), DeadFilter(group=GROUP), actor="operator")
    await rig.until(lambda: rig.effects() == ["9", "1", "2"])


async def test_a_consumer_that_skips_the_dead_goes_on_behind_them(rig: Rig) -> None:
    skipping = Consumer(GROUP, skips_dead=True)

    @skipping.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> Outcome | None:
        if event.order_id == 1:
            return DeadLetter(reason="no such customer")
        await session.execute(INSERT, {"note": f"{event.order_id}"})
        return None

    await rig.start(consumer=skipping)
    await rig.publish(
        an_event(1, ordering=keyed(1)),
        an_event(2, ordering=keyed(2), payload=b"no JSON"),
        an_event(3, ordering=keyed(3)),
    )
    await rig.until(lambda: rig.effects() == ["3"])
    assert rig.count("consumer.dead") == 2


# ------------------------------------------------------------------ slots


async def test_one_lane_alone_uses_every_slot_that_its_tier_may_have(rig: Rig) -> None:
    running = set[int]()
    enough = asyncio.Event()

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced) -> None:
        running.add(event.order_id)
        if len(running) == 7:  # ten slots, three of them for interactive work only
            enough.set()
        await enough.wait()

    await rig.start()
    await rig.publish(*(an_event(number) for number in range(20)))
    await asyncio.wait_for(enough.wait(), 10)
    await rig.until_settled()


async def test_a_quiet_lane_beside_two_hundred_busy_ones_starts_at_once(rig: Rig) -> None:
    handled: list[str] = []
    published_at: list[int] = []
    started_after: list[int] = []

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, ctx: Context) -> None:
        await asyncio.sleep(0.005)
        if ctx.tenant == "quiet" and published_at:
            started_after.append(len(handled) - published_at[0])
        handled.append(ctx.tenant)

    await rig.start()
    await rig.publish(*(an_event(number, tenant=f"busy {number % 200}") for number in range(3000)))
    await rig.publish(an_event(tenant="quiet"))
    await rig.until(lambda: "quiet" in handled)
    # A lane stays active for a round after its last, or until the others have had as much time: then it is new.
    await rig.until(lambda: len(handled) > handled.index("quiet") + 1000)
    published_at.append(len(handled))
    await rig.publish(an_event(tenant="quiet"))
    await rig.until(lambda: bool(started_after))
    # It is new among flows that all wait: its turn is within what ten slots start next.
    assert started_after[0] <= 20


async def test_workers_for_one_tier_leave_the_queues_and_retries_of_the_others_alone(rig: Rig) -> None:
    @rig.consumer.on(OrderPlaced, policy=AT_ONCE)
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> Outcome | None:
        if ctx.attempt == 1:
            return Retry()
        await session.execute(INSERT, {"note": ctx.event.tier.label})
        return None

    everyone = await rig.start()
    await rig.publish(an_event(tier=Tier.BULK), an_event(tier=Tier.INTERACTIVE))
    await rig.until(lambda: rig.count("effect") == 2)
    await everyone.drain()
    rig.execute("DELETE FROM effect")
    rig.limits = replace(rig.limits, tiers=(Tier.INTERACTIVE,))
    dedicated = await rig.start()
    await rig.publish(*(an_event(tier=tier) for tier in Tier for _ in range(20)))
    await rig.until(lambda: rig.effects() == ["interactive"] * 20)
    assert dedicated.readiness.engine is not None
    assert dedicated.readiness.engine.lanes.attached == 1

    rig.limits = replace(rig.limits, tiers=(Tier.STANDARD, Tier.BULK))
    await rig.start()
    await rig.until(lambda: rig.count("effect") == 60)


async def test_interactive_work_starts_while_bulk_work_fills_its_slots(rig: Rig) -> None:
    is_blocked = asyncio.Event()

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> None:
        if ctx.event.tier is Tier.BULK:
            await is_blocked.wait()
        else:
            await session.execute(INSERT, {"note": ctx.event.tier.label})

    await rig.start()
    await rig.publish(*(an_event(number, tenant=f"t{number}", tier=Tier.BULK) for number in range(20)))
    await rig.publish(an_event(tier=Tier.INTERACTIVE), an_event(tier=Tier.STANDARD))
    await rig.until(lambda: sorted(rig.effects()) == ["interactive", "standard"])
    is_blocked.set()
    await rig.until_settled()


async def test_lanes_are_found_by_a_process_that_no_directory_message_reached(rig: Rig) -> None:
    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": "handled"})

    first = await rig.start()
    await rig.publish(an_event())
    await rig.until(lambda: rig.count("effect") == 1)
    await first.drain()
    await rig.start()
    await rig.publish(an_event(2))
    await rig.until(lambda: rig.count("effect") == 2)
    assert rig.value("SELECT count(*) FROM consumer.lane") == 1


async def test_a_lane_that_one_process_heard_is_gone_and_another_that_it_stands_again_is_consumed_by_both(
    rig: Rig,
) -> None:
    """Announcements are shared out among a group's processes: each hears some of them only."""

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": "handled"})

    assert isinstance(rig.queues, MemoryQueues)
    process = await rig.start()
    event = an_event()
    await rig.publish(event)
    await rig.until(lambda: rig.count("effect") == 1)
    rig.execute("CREATE TABLE stood AS SELECT * FROM consumer.lane")
    engine = process.readiness.engine
    assert engine is not None
    gone = announcement(lane_of(event), is_gone=True)
    rig.queues.inner.publish(topology.DIRECTORY_EXCHANGE, GROUP, gone)
    await rig.until(lambda: engine.lanes.attached == 0, what="the lane to be left")
    rig.execute("INSERT INTO consumer.lane SELECT * FROM stood")  # as the other process does
    await rig.publish(an_event(2))
    await rig.until(lambda: rig.count("effect") == 2)


async def test_a_copy_of_each_dead_letter_is_published_with_its_reason(rig: Rig) -> None:
    assert isinstance(rig.queues, MemoryQueues)
    event = an_event()
    await rig.queues.declare(lane_of(event))
    rig.queues.inner.declare_queue("listener", {})
    rig.queues.inner.bind("listener", topology.DEAD_EXCHANGE, "#")
    await rig.start()
    await rig.publish(event)
    await rig.until(lambda: rig.count("consumer.dead WHERE published_at IS NOT NULL") == 1)
    assert await rig.queues.in_queue("listener") == 1


async def test_what_the_broker_refuses_becomes_a_dead_letter(rig: Rig) -> None:
    assert isinstance(rig.queues, MemoryQueues)
    event = an_event()
    await rig.start()
    rig.queues.inner.publish(topology.REFUSED_EXCHANGE, lane_of(event).routing_key, encode(event))
    await rig.until(lambda: rig.count("consumer.dead") == 1)
    assert rig.rows("SELECT category, tenant, event_id FROM consumer.dead") == [("refused", "acme", event.id)]
