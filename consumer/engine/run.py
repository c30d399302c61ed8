"""One consumer process, put together from its ports: starts, runs until asked to stop, drains."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import psycopg
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from consumer.api import Consumer
from consumer.decide.costs import Costs, quantum_of
from consumer.decide.fairness import Kind, Scheduler
from consumer.decide.limit import bounds_of
from consumer.engine.abandoned import Abandoned
from consumer.engine.alarm import Alarm, HookAlerts
from consumer.engine.books import Books
from consumer.engine.control import Controls, Weights
from consumer.engine.drain import drain
from consumer.engine.growth import OwnedGrowth
from consumer.engine.guard import Guard
from consumer.engine.lease import Clock, Lease
from consumer.engine.lookout import Lookout
from consumer.engine.loop import Engine
from consumer.engine.modes import modes_of
from consumer.engine.path import Path
from consumer.engine.permits import Permits
from consumer.engine.pool import Pool
from consumer.engine.pump import Pump
from consumer.engine.redrive import Redrive
from consumer.engine.restraint import Restraint
from consumer.engine.service import Service
from consumer.engine.slot import Slot
from consumer.engine.suspects import MARGIN_S, Suspects, alone_s
from consumer.engine.tally import Tally
from consumer.engine.transactions import Transactions
from consumer.limits import Limits
from consumer.ports import Broker, Exchange
from consumer.store.claims import Claims
from consumer.store.connection import SlotConnection
from consumer.store.desk import Desk, forever
from consumer.store.ledger import Ledger
from consumer.store.pruning import check_horizon, read_ring
from outbox.errors import OutboxError, StoreUnavailable
from outbox.shell.database import conninfo
from outbox.shell.health import Check, Probe
from outbox.shell.signals import Stop, first_of
from outbox.topology import QueueKind


@dataclass(slots=True)
class Readiness:
    """What a running consumer says of itself; red until it runs, and from the first signal on."""

    engine: Engine | None = None
    controls: Controls | None = None
    transactions: Transactions | None = None
    abandoned: Abandoned | None = None
    lease: Lease | None = None

    def incarnation(self) -> str:
        """The id of this process's incarnation; empty before it has one."""
        return "" if self.lease is None else str(self.lease.id)

    @property
    def abandoned_alive(self) -> int:
        """How many handlers run past their deadline and could not be stopped."""
        return 0 if self.abandoned is None else self.abandoned.alive

    @property
    def is_worn(self) -> bool:
        """Whether the process ends of its own accord, since too many handlers could not be stopped."""
        return self.abandoned is not None and self.abandoned.is_too_many.is_set()

    def probes(self) -> dict[str, Probe]:
        """The checks that readiness depends on."""
        return {"broker": self._broker, "database": self._database, "running": self._running}

    def _broker(self) -> Check:
        is_ok = self.engine is not None and self.engine.is_connected
        return Check(is_ok=is_ok, detail="" if is_ok else "not connected")

    def _database(self) -> Check:
        is_ok = self.engine is not None and self.engine.store_ok.is_set()
        return Check(is_ok=is_ok, detail="" if is_ok else "does not answer")

    def _running(self) -> Check:
        if self.engine is None:
            return Check(is_ok=False, detail="starting")
        return Check(is_ok=not self.engine.is_draining, detail="draining" if self.engine.is_draining else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """The command lines of processes that this one starts.

    *alone* runs suspects (``engine.alone``), by an incarnation of a given id; *isolated* is one of the pool's
    (``engine.isolated``).
    """

    alone: Callable[[UUID], Sequence[str]]
    isolated: Callable[[], Sequence[str]]


async def run_consumer(  # noqa: PLR0913 - each is a part that the caller owns
    consumer: Consumer,
    broker: Broker,
    exchange: Exchange,
    database_url: str,
    *,
    stop: Stop,
    limits: Limits | None = None,
    queue_kind: QueueKind = "quorum",
    readiness: Readiness | None = None,
    programs: Programs | None = None,
) -> None:
    """Run *consumer* until *stop* asks to drain, then drain and return. Cancelled, it ends at once, as a crash would.

    Without *programs* suspects wait for another process of the group, and handlers that want a process run in this one.

    Raises:
        ConfigError: a limit does not fit.
        StoreUnavailable, BrokerUnavailable: not there, or refused, at the start; once running, that only pauses.
        SchemaMissing, QueueMismatch: what stands there is not what this version needs.
    """
    consumer.registry.check()
    bounds = limits if limits is not None else Limits()
    async with AsyncExitStack() as stack:
        alarm = Alarm(consumer.group, [HookAlerts(hook) for hook in consumer.alert_hooks])
        parts = await _assemble(consumer, broker, exchange, database_url, bounds, stack, alarm=alarm, programs=programs)
        await exchange.declare_group(consumer.group, queue_kind)
        if readiness is not None:
            readiness.engine, readiness.controls = parts.engine, parts.controls
            readiness.transactions = parts.transactions
            readiness.abandoned, readiness.lease = parts.abandoned, parts.lease
        await broker.start(parts.engine)
        stack.push_async_callback(broker.stop)
        await _run(parts, bounds, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """What handles an event, whether it runs beside others or alone."""

    horizon: timedelta
    lease: Lease
    path: Path
    restraint: Restraint
    abandoned: Abandoned
    tally: Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    engine: Engine
    pump: Pump
    service: Service
    redrive: Redrive
    owned_growth: OwnedGrowth
    lookout: Lookout
    lease: Lease
    controls: Controls
    permits: Permits | None
    guard: Guard
    abandoned: Abandoned
    suspects: Suspects
    slots: tuple[Slot, ...]
    transactions: Transactions
    broker: Broker


async def _assemble(
    consumer: Consumer,
    broker: Broker,
    exchange: Exchange,
    database_url: str,
    limits: Limits,
    stack: AsyncExitStack,
    *,
    alarm: Alarm,
    programs: Programs | None,
) -> _Parts:
    name = f"outbox-consumer {consumer.group}"
    work, copies = [Desk(database_url, name=name) for _ in range(2)]
    for desk in (work, copies):
        stack.push_async_callback(desk.close)
    core = await assemble_core(consumer, database_url, limits, stack, name=name, alarm=alarm)
    horizon, lease, path = core.horizon, core.lease, core.path
    database = engine_for(database_url, name=name)
    guard = Guard(group=consumer.group, path=path, desk=work, incarnation=lambda: lease.id)
    weights = Weights()
    bounds = bounds_of([*consumer.limits, *limits.of_tenants()])
    costs = Costs(consumer.registry.types) if limits.share_by == "time" else None
    scheduler = Scheduler(
        limits.slots,
        reserved_percent=limits.reserved_percent,
        tiers=limits.tiers,
        quantum=1 if costs is None else quantum_of(limits.slots),
        weight_of=weights.of,
        bounds=bounds,
    )
    engine = Engine(
        group=consumer.group,
        broker=broker,
        guard=guard,
        scheduler=scheduler,
        prefetch=limits.prefetch,
        payload_bytes_max=limits.payload_bytes_max,
        restraint=core.restraint,
        costs=costs,
        tally=core.tally,
    )
    controls = Controls(
        group=consumer.group,
        registry=consumer.registry,
        desk=work,
        scheduler=scheduler,
        weights=weights,
        restraint=core.restraint,
    )
    await controls.follow(engine)  # before anything comes that is paused
    permits = None
    if any(bound.kind is Kind.FLEET for bound in bounds):
        desk = Desk(database_url, name=name)
        stack.push_async_callback(desk.close)
        permits = Permits(group=consumer.group, engine=engine, scheduler=scheduler, desk=desk, grace_s=limits.lease_s)
    pool = None if programs is None else Pool(programs.isolated, size=limits.isolated_max)
    slots = tuple(Slot(database, number=number, abandoned=core.abandoned, pool=pool) for number in range(limits.slots))
    stack.push_async_callback(_close_all, slots)
    if pool is not None:
        stack.push_async_callback(pool.close)
    parking = SlotConnection(database)
    stack.push_async_callback(parking.close)
    # An engine's first connection sets it up, behind a lock of one event loop: made before sync slots bring theirs.
    await parking.open()
    pump = Pump(
        engine=engine,
        path=path,
        desk=work,
        parking=parking,
        lease=lease,
        limits=limits,
        horizon=horizon,
    )
    service = Service(
        engine=engine,
        broker=broker,
        exchange=exchange,
        desk=work,
        copies=copies,
        payload_bytes_max=limits.payload_bytes_max,
    )
    suspects = Suspects(
        group=consumer.group,
        desk=work,
        command=None if programs is None else programs.alone,
        within_s=alone_s(consumer, limits) + MARGIN_S,
    )
    redrive = Redrive(
        engine=engine,
        desk=work,
        lease=lease,
        per_s=limits.replay_unknown_per_s,
        type_age=limits.replay_unknown_type,
    )
    return _Parts(
        engine=engine,
        pump=pump,
        service=service,
        redrive=redrive,
        owned_growth=OwnedGrowth(engine=engine, desk=work, lease=lease),
        lookout=Lookout(group=consumer.group, desk=work, tally=core.tally),
        lease=lease,
        controls=controls,
        permits=permits,
        guard=guard,
        abandoned=core.abandoned,
        suspects=suspects,
        slots=slots,
        transactions=Transactions(slots, warn_s=limits.transaction_warn_s),
        broker=broker,
    )


async def assemble_core(
    consumer: Consumer,
    database_url: str,
    limits: Limits,
    stack: AsyncExitStack,
    *,
    name: str,
    alarm: Alarm,
    lease_s: float | None = None,
    incarnation: UUID | None = None,
) -> Core:
    """What handles an event in any process: begins a lease, and knows a delivery's path. *stack* closes what it opens.

    Raises:
        ConfigError, StoreUnavailable, SchemaMissing: as ``run_consumer``.
    """
    # The last two connect when a leased handler is first to run.
    leases, taking, completing = [Desk(database_url, name=name) for _ in range(3)]
    for desk in (leases, taking, completing):
        stack.push_async_callback(desk.close)
    async with leases.use() as connection:
        ring = await read_ring(connection)
    horizon = check_horizon(limits.horizon, ring)
    clock = Clock()
    lease = Lease(
        group=consumer.group,
        desk=leases,
        clock=clock,
        lease_s=limits.lease_s if lease_s is None else lease_s,
        version=limits.version,
        knows=consumer.registry.knows(),
        id=incarnation,
    )
    await lease.begin()
    abandoned = Abandoned(most=limits.abandoned_max)
    ledger = Ledger(group=consumer.group, ring=ring)
    books = Books(
        group=consumer.group,
        ledger=ledger,
        horizon=horizon,
        skips_dead=consumer.skips_dead,
        payload_bytes_max=limits.payload_bytes_max,
    )
    modes = modes_of(
        consumer,
        limits,
        ledger=ledger,
        claims=Claims(group=consumer.group, ring=ring, horizon=horizon),
        horizon=horizon,
        incarnation=lambda: lease.id,
        desks=(taking, completing),
        abandoned=abandoned,
    )
    stack.push_async_callback(modes.leased.close)
    restraint, tally = Restraint(alarm), Tally()
    path = Path(
        consumer=consumer,
        modes=modes,
        books=books,
        horizon=horizon,
        now=clock.now,
        rng=random.Random(),  # noqa: S311 - it spreads retries, and hides nothing
        restraint=restraint,
        tally=tally,
    )
    return Core(horizon=horizon, lease=lease, path=path, restraint=restraint, abandoned=abandoned, tally=tally)


async def _run(parts: _Parts, limits: Limits, stop: Stop) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(job) for job in _jobs(parts)]
            await first_of(stop.drain(), parts.abandoned.is_too_many.wait())
            if not stop.is_draining:
                stop.request()
            await drain(parts.engine, parts.broker, parts.lease, stop=stop, within_s=limits.drain_s)
            await parts.engine.alarm.close()
            for task in running:
                task.cancel()
        if parts.permits is not None and parts.engine.hands.running == 0:
            with suppress(StoreUnavailable):  # then others find out that this session is gone
                await parts.permits.end()
    except* OutboxError as group:
        raise _first(group) from None  # one sentence for whoever started us


def _jobs(parts: _Parts) -> list[Coroutine[object, object, None]]:
    engine, pump, service, lease, controls = parts.engine, parts.pump, parts.service, parts.lease, parts.controls

    def again(
        job: Callable[[], Awaitable[float]], *, wake: asyncio.Event | None = None
    ) -> Coroutine[object, object, None]:
        return forever(job, store_ok=engine.store_ok, lose_store=engine.lose_store, wake=wake)

    return [
        *(engine.serve(slot) for slot in parts.slots),
        engine.feed(),
        pump.watch(),
        parts.transactions.watch(),
        again(lambda: lease.renew(engine)),
        again(lambda: controls.follow(engine), wake=engine.control_written),
        again(pump.take, wake=engine.work_stored),
        again(pump.move_keys, wake=engine.key_passed),
        again(pump.relieve),
        again(pump.prune),
        again(pump.prune_results),
        *([again(parts.permits.follow, wake=engine.permits_wanted)] if parts.permits is not None else []),
        again(parts.guard.end_marks),
        again(parts.suspects.look, wake=parts.guard.suspected),
        again(parts.redrive.run),
        again(parts.redrive.give_up),
        again(parts.owned_growth.look),
        again(parts.lookout.look),
        again(service.find_lanes),
        again(service.read_directory),
        again(service.collect_refused),
        again(service.copy_dead, wake=engine.dead_stored),
        again(engine.ease, wake=engine.restraint.changed),
        again(engine.alarm.repeat),
        engine.alarm.send(),
        service.call_the_roll(),
    ]


async def _close_all(slots: Sequence[Slot]) -> None:
    """Close them side by side: each may wait for a thread that a handler blocks."""
    await asyncio.gather(*(slot.close() for slot in slots))


def engine_for(database_url: str, *, name: str) -> AsyncEngine:
    """A SQLAlchemy engine that makes connections and keeps none, so that several event loops may share it."""
    info = conninfo(database_url, application_name=name)

    async def create() -> psycopg.AsyncConnection:
        return await psycopg.AsyncConnection.connect(info)

    return create_async_engine(
        "postgresql+psycopg://",
        async_creator=create,
        poolclass=NullPool,
        # What the ledger promises rests on it: a claim that waited has to see what it waited for.
        isolation_level="READ COMMITTED",
        hide_parameters=True,
    )


def _first(group: BaseExceptionGroup[OutboxError]) -> OutboxError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
