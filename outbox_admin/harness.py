"""For apps' tests: handlers run by the real engine on a real database until all is done, with a broker in memory.

Nothing here waits for a clock: what is committed is delivered when a test says so, what is due later is due now.
"""

import asyncio
import copy
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Final, LiteralString, Self, TypeVar, cast
from uuid import UUID

import psycopg

from consumer.api import Consumer
from consumer.engine.run import Readiness, run_consumer
from consumer.limits import Limits
from consumer.memory import MemoryExchange
from consumer.store.dead import DeadSummary
from consumer.store.dead_list import DeadFilter, DeadState, matching
from outbox import topology
from outbox.draft import Payload, body_of_model, body_of_plain
from outbox.event import JSON, Event, EventModel, Tier, new_event_id
from outbox.inprocess import InProcessBroker, QueueCount
from outbox.naming import Lane, check_tenant
from outbox.shell.database import conninfo
from outbox.shell.signals import Stop
from outbox.wire import encode
from outbox_admin.crashes import Crash, Faults, FaultyBroker
from relay.log.rows import EVENT_COLUMNS, event_of
from relay.log.scheduled import move_due

__all__ = ["Crash", "Harness"]

T = TypeVar("T")
_POLL_S: Final = 0.005
_SOURCE: Final = "/test"
_PAYLOAD_BYTES_MAX: Final = 1024 * 1024
_ROWS_MAX: Final = 10_000
# Short leases, so that what a crash leaves behind is soon free.
_LIMITS: Final = Limits(slots=4, lease_s=3.0)
_SINCE: Final[LiteralString] = f"""
SELECT {EVENT_COLUMNS} FROM outbox.event e WHERE NOT pg_visible_in_snapshot(e.xid, %s::pg_snapshot)
ORDER BY e.seq"""  # noqa: S608 (its parts are constants)
_HASTEN_SCHEDULED: Final = """
UPDATE outbox.scheduled SET due_at = clock_timestamp()
WHERE due_at > clock_timestamp() AND due_at <= clock_timestamp() + %s"""
_HASTEN_WORK: Final = """
UPDATE consumer.work SET due_at = clock_timestamp()
WHERE group_name = %s AND owner IS NULL AND due_at > clock_timestamp() AND due_at <= clock_timestamp() + %s"""
_DUE: Final[LiteralString] = """
SELECT count(*) FROM consumer.work
WHERE group_name = %s AND reason <> 'suspect' AND (owner IS NOT NULL OR due_at <= clock_timestamp())"""


class Harness:
    """Runs *consumer* as a process would, in a thread of its own, on a migrated database. Used as a context manager.

    What was committed before it began is nobody's business here. Every method that waits raises AssertionError after
    *deadline_s* seconds, and says what was still to be done.
    """

    def __init__(self, consumer: Consumer, database_url: str, *, deadline_s: float = 20.0) -> None:
        self._url = database_url
        self._conninfo = conninfo(database_url, application_name="outbox-harness")
        self._deadline_s = deadline_s
        self._faults = Faults()
        self._consumer = copy.copy(consumer)
        self._consumer.registry = consumer.registry.changed(self._faults.around)
        self._group = consumer.group
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fairpost-harness", daemon=True)
        self._broker = InProcessBroker()
        self._runner: asyncio.Task[None] | None = None
        self._readiness = Readiness()
        self._delivered: set[UUID] = set()
        self._lanes: set[Lane] = set()

    def __enter__(self) -> Self:
        self._database = psycopg.connect(self._conninfo, autocommit=True)
        self._since = str(self._value("SELECT pg_current_snapshot()::text"))
        self._thread.start()
        self._await(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._await(self._kill())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        # Nobody comes for what waits: the next test of this group would be handed it.
        self._database.execute("DELETE FROM consumer.work WHERE group_name = %s", (self._group,))
        self._database.close()

    # ---------------------------------------------------------------- what tests do

    def deliver(
        self,
        event: EventModel | str,
        payload: Payload = None,
        *,
        tenant: str,
        tier: Tier | None = None,
        version: int = 1,
        times: int = 1,
        crash: Crash | None = None,
    ) -> Counter[str]:
        """Hand the consumer an event that nobody emitted, *times* over, and wait for its end.

        Events with an ordering key are emitted by the app and brought by ``drain``: their numbers are the database's.

        Args:
            event: a model, or a type's name with its *payload*.
            crash: end the consumer there, once, and begin anew.

        Returns:
            How often which outcome was settled: ``done``, ``retry``, ``dead``, ``duplicate`` and the like.
        """
        is_typed = isinstance(event, EventModel)
        body = (
            body_of_model(event, payload_bytes_max=_PAYLOAD_BYTES_MAX)
            if is_typed
            else body_of_plain(
                cast("str", event),
                payload,
                version=version,
                content_type=JSON,
                payload_bytes_max=_PAYLOAD_BYTES_MAX,
            )
        )
        now = datetime.now(UTC)
        made = Event(
            id=new_event_id(),
            tenant=check_tenant(tenant),
            tier=body.tier if tier is None else tier,
            type=body.type,
            data_version=body.data_version,
            source=_SOURCE,
            content_type=body.content_type,
            payload=body.payload,
            time=now,
            ledger_time=now,
        )
        return self._counting(lambda: self._bring([made] * times, crash))

    def drain(self, *, ahead: timedelta = timedelta(0), crash: Crash | None = None) -> Counter[str]:
        """Deliver all that is committed, and all that follows from it, until nothing is due any more.

        Args:
            ahead: what would become due within that time is due now: scheduled events, and retries again and again.
            crash: end the consumer there, once, and begin anew.

        Returns:
            As ``deliver``.
        """
        return self._counting(lambda: self._drain(ahead, crash))

    def emitted(self, event: type[EventModel] | str | None = None) -> list[Event]:
        """The committed events, oldest first: all, or those of a model or a type. Scheduled ones once they are due."""
        wanted = event if event is None or isinstance(event, str) else event.event_type
        rows = self._database.execute(_SINCE, (self._since,)).fetchall()
        return [one for one in map(event_of, rows) if wanted is None or one.type == wanted]

    @property
    def dead(self) -> Sequence[DeadSummary]:
        """The group's open dead letters."""

        async def read() -> Sequence[DeadSummary]:
            async with await psycopg.AsyncConnection.connect(self._conninfo) as connection:
                found = DeadFilter(group=self._group, state=DeadState.OPEN)
                return [one.summary for one in await matching(connection, found, limit=_ROWS_MAX)]

        return self._await(read())

    # ---------------------------------------------------------------- inside

    def _counting(self, work: Callable[[], None]) -> Counter[str]:
        before = Counter(self._outcomes)
        work()
        return Counter({name: count for name, count in (self._outcomes - before).items() if count})

    @property
    def _outcomes(self) -> Counter[str]:
        engine = self._readiness.engine
        return self._faults.outcomes + (Counter() if engine is None else engine.outcomes)

    def _drain(self, ahead: timedelta, crash: Crash | None) -> None:
        until = time.monotonic() + self._deadline_s
        while True:
            if ahead:
                self._database.execute(_HASTEN_SCHEDULED, (ahead,))
                self._database.execute(_HASTEN_WORK, (self._group, ahead))
            self._await(self._move_scheduled())
            # Asked before the look: what runs now may emit after it.
            was_quiet = self._is_quiet()
            new = [one for one in self.emitted() if one.id not in self._delivered]
            if was_quiet and not new:
                return
            if time.monotonic() > until:
                raise AssertionError(f"drain: want an end within {self._deadline_s:g} s, got ever more that is due")
            self._delivered.update(one.id for one in new)
            self._bring(new, crash)
            crash = None

    def _bring(self, events: Sequence[Event], crash: Crash | None) -> None:
        self._faults.armed = crash
        self._await(self._publish(events))
        try:
            self._until_quiet()
        finally:
            self._faults.armed = None

    def _until_quiet(self) -> None:
        until = time.monotonic() + self._deadline_s
        while not self._is_quiet():
            if self._faults.reached.is_set():
                self._await(self._kill())
                self._faults.passed()
                self._await(self._start())
            if time.monotonic() > until:
                raise AssertionError(f"want all settled within {self._deadline_s:g} s, got {self._waiting()}")
            time.sleep(_POLL_S)

    def _is_quiet(self) -> bool:
        engine = self._readiness.engine
        if engine is None or self._faults.reached.is_set():
            return False
        counts = self._await(self._counts())
        return not any(one.ready or one.unsettled for one in counts) and not len(engine.hands) and not self._is_due()

    def _is_due(self) -> bool:
        if not self._value(_DUE, self._group):
            return False
        engine = self._readiness.engine
        if engine is not None:
            self._loop.call_soon_threadsafe(engine.work_stored.set)
        return True

    def _waiting(self) -> str:
        engine = self._readiness.engine
        unsettled = 0 if engine is None else len(engine.hands)
        return f"{unsettled} events unsettled and {self._value(_DUE, self._group)} work rows due"

    def _value(self, query: LiteralString, *values: object) -> object:
        row = self._database.execute(query, values).fetchone()
        return None if row is None else row[0]

    def _await(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(self._deadline_s)

    async def _counts(self) -> Sequence[QueueCount]:
        # Told and announced to nobody here: what the group reads beside its lanes.
        aside = {queue.name for queue in topology.group_queues(self._group, "quorum")}
        return [count for name, count in self._broker.counts().items() if name not in aside]

    async def _publish(self, events: Sequence[Event]) -> None:
        connection = self._broker.connect()
        lanes = {Lane(group=self._group, tier=event.tier, tenant=event.tenant) for event in events}
        for lane in lanes:
            self._broker.declare_queue(lane.queue, topology.lane_arguments("quorum"))
            self._broker.bind(lane.queue, topology.EVENTS_EXCHANGE, lane.routing_key)
        for event in events:
            lane = Lane(group=self._group, tier=event.tier, tenant=event.tenant)
            connection.publish(topology.EVENTS_EXCHANGE, lane.routing_key, encode(event))
        self._lanes |= lanes
        if self._readiness.engine is not None:
            await self._readiness.engine.learn(lanes)

    async def _start(self) -> None:
        self._readiness = Readiness()
        broker, exchange = FaultyBroker(self._broker, self._faults), MemoryExchange(self._broker)
        work = run_consumer(
            self._consumer, broker, exchange, self._url, stop=Stop(), limits=_LIMITS, readiness=self._readiness
        )
        self._runner = asyncio.create_task(work)
        while self._readiness.engine is None or not self._readiness.engine.is_connected:
            if self._runner.done():
                self._runner.result()
            await asyncio.sleep(_POLL_S)
        await self._readiness.engine.learn(self._lanes)

    async def _kill(self) -> None:
        runner, engine = self._runner, self._readiness.engine
        if engine is not None:
            self._faults.outcomes += engine.outcomes
        self._readiness = Readiness()
        if runner is not None:
            runner.cancel()
            self._faults.release()
            await asyncio.gather(runner, return_exceptions=True)

    async def _move_scheduled(self) -> None:
        async with await psycopg.AsyncConnection.connect(self._conninfo) as connection:
            await move_due(connection, rows_max=_ROWS_MAX, within_s=self._deadline_s)
