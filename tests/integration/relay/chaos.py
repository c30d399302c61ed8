"""A database under writers of every kind, relays that come, go, crash, freeze and lose their wires, and what arrived.

The checker knows only what was committed and rolled back, and the order in which events first arrived.
"""

import asyncio
import json
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import psycopg

from outbox.naming import bucket_of, tenant_hash
from relay.engine.loop import run_relay
from relay.gauges import Gauges
from relay.limits import Limits
from tests.integration.relay.slow_broker import SlowBroker, SlowPublisher

GROUPS = ("default", "audit")
AGGREGATES = 3
SLOTS = 6
LIMITS = Limits(
    window=200,
    cap=60,
    chunk=20,
    batch=50,
    lease_s=1.2,
    persist_s=0.05,
    busy_poll_s=0.01,
    idle_poll_s=0.05,
    confirm_s=3.0,
    survey_s=20.0,
    drain_s=1.0,
)

_INSERT = """
insert into outbox.event (id, bucket, tier, tenant, tenant_hash, type, data_version, source, content_type, payload)
values (%s, %s, 1, %s, %s, 'counted', 1, 'chaos', 'application/json', %s)"""


@dataclass(frozen=True, slots=True)
class Written:
    id: UUID
    aggregate: str
    version: int


@dataclass(slots=True)
class Truth:
    """What the writers know."""

    committed: list[Written] = field(default_factory=list)
    rolled_back: set[UUID] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def commit(self, written: list[Written]) -> None:
        with self.lock:
            self.committed += written

    def roll_back(self, written: list[Written]) -> None:
        with self.lock:
            self.rolled_back.update(one.id for one in written)


@dataclass(frozen=True, slots=True)
class Verdict:
    committed: int
    arrived: int
    lost: int
    ghosts: int
    disordered: int
    events: Counter[str]

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.ghosts or self.disordered)


class Writer:
    """One session that emits: early transaction numbers, savepoints, roll-backs, two-phase and long transactions.

    Some transactions are overtaken: another, begun later, emits for the same aggregate and commits just before.
    """

    def __init__(
        self, url: str, seed: int, truth: Truth, over: threading.Event, *, tenants: int, may_prepare: bool
    ) -> None:
        self._connection = psycopg.connect(url)
        self._overtaking = psycopg.connect(url)
        self._rng = random.Random(seed)
        self._truth = truth
        self._over = over
        self._tenants = tenants
        self._may_prepare = may_prepare

    def run(self) -> None:
        while not self._over.is_set():
            try:
                self._transaction()
            except psycopg.errors.DeadlockDetected:
                self._connection.rollback()
                self._overtaking.rollback()
            self._pause(0.005)
        self._connection.close()
        self._overtaking.close()

    def _transaction(self) -> None:
        rng, connection = self._rng, self._connection
        has_number = rng.random() < 0.3
        if has_number:
            connection.execute("select pg_current_xact_id()")  # long before its first event
        if rng.random() < 0.2:
            self._pause(0.05)
        tenant = f"t{rng.randrange(self._tenants)}"
        aggregate = f"{tenant}.{rng.randrange(AGGREGATES)}"
        if has_number and rng.random() < 0.5:
            overtaking = [self._emit_one(self._overtaking, tenant, aggregate)]
            self._overtaking.commit()
            self._truth.commit(overtaking)
        written: list[Written] = []
        for _ in range(1 if rng.random() < 0.97 else 400):
            written += self._emit(tenant, aggregate)
        if rng.random() < 0.05:
            self._pause(2.5)
        self._end(written)

    def _emit(self, tenant: str, aggregate: str) -> list[Written]:
        rng, connection = self._rng, self._connection
        has_savepoint = rng.random() < 0.2
        if has_savepoint:
            connection.execute("savepoint s")
        one = self._emit_one(connection, tenant, aggregate)
        if has_savepoint and rng.random() < 0.5:
            connection.execute("rollback to s")
            self._truth.roll_back([one])
            return []
        return [one]

    def _emit_one(self, connection: psycopg.Connection, tenant: str, aggregate: str) -> Written:
        row = connection.execute(
            "update aggregate set version = version + 1 where name = %s returning version", (aggregate,)
        ).fetchone()
        assert row is not None
        one = Written(uuid4(), aggregate, row[0])
        hashed = tenant_hash(tenant)
        payload = json.dumps([one.aggregate, one.version]).encode()
        connection.execute(_INSERT, (one.id, bucket_of(hashed), tenant, hashed, payload))
        return one

    def _end(self, written: list[Written]) -> None:
        rng, connection = self._rng, self._connection
        chance = rng.random()
        if chance < 0.1:
            connection.rollback()
            self._truth.roll_back(written)
            return
        if chance < 0.16 and self._may_prepare:
            gid = f"chaos-{uuid4().hex}"
            connection.execute(f"prepare transaction '{gid}'")
            connection.commit()
            self._pause(1.5)
            connection.autocommit = True
            connection.execute(f"commit prepared '{gid}'")
            connection.autocommit = False
        else:
            connection.commit()
        self._truth.commit(written)

    def _pause(self, seconds_max: float) -> None:
        self._over.wait(self._rng.random() * seconds_max)


class Victim:
    """A relay on an event loop of its own thread, which can be crashed, frozen, and sent away for a while."""

    def __init__(self, url: str, broker: SlowBroker, seed: int) -> None:
        self.gauges = Gauges()
        self._url = url
        self._broker = broker
        self._rng = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._stop: asyncio.Event
        self._task: asyncio.Task[None]
        self.is_away = False
        self.start()

    def start(self) -> None:
        self.is_away = False
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(20)

    def crash(self) -> None:
        """End it in the middle of whatever it does; nothing is released or persisted."""
        asyncio.run_coroutine_threadsafe(self._crash(), self._loop).result(20)
        self.start()

    def leave(self) -> None:
        """Let it hand over and go, in its own time: it may be frozen just now."""
        self.is_away = True
        asyncio.run_coroutine_threadsafe(self._drain(), self._loop)

    def come_back(self) -> None:
        """Wait until it has gone, and start it again."""
        asyncio.run_coroutine_threadsafe(self._gone(), self._loop).result(20)
        self.start()

    def freeze(self, seconds: float) -> None:
        """Let it stand still, sockets open, and go on as if nothing had been."""
        self._loop.call_soon_threadsafe(threading.Event().wait, seconds)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._drain(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(
            run_relay(
                self._url,
                publisher := SlowPublisher(self._broker),
                publisher,
                stop=self._stop,
                limits=LIMITS,
                gauges=self.gauges,
                rng=self._rng,
            )
        )

    async def _crash(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _gone(self) -> None:
        await self._task

    async def _drain(self) -> None:
        self._stop.set()
        await self._task


class Janitor:
    """Truncates every slot it may, as often as it can."""

    def __init__(self, url: str, over: threading.Event, events: Counter[str]) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._over = over
        self._events = events

    def run(self) -> None:
        while not self._over.wait(0.05):
            for slot in range(SLOTS):
                row = self._connection.execute(f"select exists (select from outbox.event_{slot})").fetchone()
                if row is not None and row[0]:
                    self._truncate(slot)
        self._connection.close()

    def _truncate(self, slot: int) -> None:
        try:
            row = self._connection.execute("select outbox.truncate_slot(%s, interval '0')", (slot,)).fetchone()
        except psycopg.errors.DeadlockDetected:
            return
        assert row is not None
        self._events[f"slot {row[0]}"] += 1


def run_chaos(
    url: str,
    *,
    seed: int,
    seconds: float,
    writers: int = 6,
    tenants: int = 16,
    relays: int = 3,
    settle_s: float = 40.0,
) -> Verdict:
    """Let everything happen for *seconds*, let it settle for up to *settle_s*, and judge.

    Few *tenants* make writers meet on the same aggregates more often. The database must have the outbox chain
    with a ring of ``SLOTS`` slots of a second, and nothing else.
    """
    rng = random.Random(seed)
    truth, events = Truth(), Counter[str]()
    over, janitor_over = threading.Event(), threading.Event()
    with psycopg.connect(url) as connection:
        connection.execute("create table aggregate (name text primary key, version integer not null default 0)")
        names = [f"t{tenant}.{number}" for tenant in range(tenants) for number in range(AGGREGATES)]
        connection.execute("insert into aggregate select unnest(%s::text[])", (names,))
        connection.execute("select outbox.add_group('audit')")
        row = connection.execute("select current_setting('max_prepared_transactions')::int > 0").fetchone()
    may_prepare = bool(row and row[0])
    jobs = [
        Writer(url, seed * 100 + one, truth, over, tenants=tenants, may_prepare=may_prepare).run
        for one in range(writers)
    ]
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    threads.append(threading.Thread(target=_hold_a_transaction, args=(url, over), daemon=True))
    janitor = threading.Thread(target=Janitor(url, janitor_over, events).run, daemon=True)
    broker = SlowBroker(seed)
    victims = [Victim(url, broker, seed * 10 + one) for one in range(relays)]
    for thread in [*threads, janitor]:
        thread.start()
    _harass(victims, broker, rng, time.monotonic() + seconds, events)
    over.set()
    for thread in threads:
        thread.join()
    _settle(broker, truth, settle_s)
    for victim in victims:
        victim.stop()
    janitor_over.set()
    janitor.join()
    broker.close()
    for victim in victims:
        for name in (
            "takeovers",
            "given_up",
            "leases_lost",
            "store_losses",
            "broker_losses",
            "surveys",
            "set_aside",
            "resent",
            "persists",
        ):
            events[name] += getattr(victim.gauges, name)
    return judge(truth, broker, events)


def judge(truth: Truth, broker: SlowBroker, events: Counter[str]) -> Verdict:
    with truth.lock:
        committed = {one.id for one in truth.committed}
        rolled_back = set(truth.rolled_back)
    first: dict[str, set[UUID]] = {group: set() for group in GROUPS}
    latest: dict[tuple[str, str], int] = {}
    disordered = 0
    arrivals = broker.arrived()
    for outgoing in arrivals:
        group = outgoing.lane.group
        if outgoing.event.id in first[group]:
            continue
        first[group].add(outgoing.event.id)
        aggregate, version = json.loads(outgoing.event.payload)
        disordered += version <= latest.get((group, aggregate), 0)
        latest[group, aggregate] = version
    return Verdict(
        committed=len(committed),
        arrived=len(arrivals),
        lost=sum(len(committed - seen) for seen in first.values()),
        ghosts=sum(len(seen & rolled_back) for seen in first.values()),
        disordered=disordered,
        events=events,
    )


def _hold_a_transaction(url: str, over: threading.Event) -> None:
    with psycopg.connect(url) as connection:
        while not over.is_set():
            connection.execute("select pg_current_xact_id()")
            over.wait(3)
            connection.rollback()


def _harass(victims: list[Victim], broker: SlowBroker, rng: random.Random, until: float, events: Counter[str]) -> None:
    pause = threading.Event()
    while time.monotonic() < until:
        pause.wait(rng.random() * 0.3)
        victim, chance = rng.choice(victims), rng.random()
        if chance < 0.08:
            events["crashes"] += 1
            victim.crash()
        elif chance < 0.25:
            events["freezes"] += 1
            victim.freeze(rng.random() * 3)
        elif chance < 0.65:
            events["cuts"] += broker.cut_one()
        elif victim.is_away:
            events["joins"] += 1
            victim.come_back()
        elif chance < 0.8 and sum(not one.is_away for one in victims) > 1:
            events["leaves"] += 1
            victim.leave()


def _settle(broker: SlowBroker, truth: Truth, settle_s: float) -> None:
    """Wait until everything committed has arrived, or the time is up."""
    pause = threading.Event()
    until = time.monotonic() + settle_s
    while time.monotonic() < until and judge(truth, broker, Counter()).lost:
        pause.wait(0.2)
