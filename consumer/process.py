"""The consumer as one process or several: signals, health and metrics around the engine."""

import asyncio
import gc
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NoReturn
from uuid import UUID

import structlog

from consumer.api import Consumer
from consumer.brokers import broker_at, exchange_at
from consumer.engine.alone import run_suspect
from consumer.engine.isolated import serve
from consumer.engine.run import Programs, Readiness, run_consumer
from consumer.engine.suspects import MARGIN_S, alone_s
from consumer.metrics import register, register_fleet
from consumer.settings import ConsumerSettings
from consumer.store import incarnation, pruning
from consumer.store.desk import Desk
from consumer.supervisor import Supervisor
from consumer.webhook import WebhookAlerts
from consumer.worker import obey, obey_signals, report
from outbox.errors import StoreUnavailable
from outbox.shell.child import confine, own_command, parent
from outbox.shell.exits import DONE, TRY_AGAIN
from outbox.shell.health import HealthServer, Probe
from outbox.shell.logs import configure
from outbox.shell.signals import Stop
from outbox.shell.startup import are_reachable

log = structlog.get_logger(__name__)
# New containers, beyond those freed meanwhile, before the collector looks for cycles. What is in hand at any time is
# thousands of them: by the default of 700 it would be walked over and over.
_COLLECT_AT: Final = 10_000


async def run_process(consumer: Consumer, settings: ConsumerSettings, *, app_name: str) -> int:
    """Run until a signal, then drain; return the exit code.

    Raises:
        StoreUnavailable, BrokerUnavailable: not reachable within ``start_s`` of the start.
        OutboxError: what else keeps a consumer from working; see ``consumer.engine.run.run_consumer``.
    """
    configure(level=settings.log_level, format=settings.log_format, stream=sys.stderr)
    readiness = Readiness()
    _show(readiness, consumer, settings)
    async with Stop() as stop, _health(settings, readiness.probes()) as health:
        log.info("consumer started", group=consumer.group, health_port=health.port)
        return await _consume(consumer, settings, stop, readiness, app_name=app_name)


async def run_worker(
    consumer: Consumer,
    settings: ConsumerSettings,
    *,
    app_name: str,
    number: int,
    descriptor: int,
    after: UUID | None = None,
) -> int:
    """As ``run_process``, as the worker *number* of the supervisor at the other end of *descriptor*.

    *after* is the incarnation of the process that was in its place and is dead.
    """
    configure(level=settings.log_level, format=settings.log_format, stream=sys.stderr, fields={"worker": number})
    readiness, stop, link = Readiness(), Stop(), await parent(descriptor)
    _show(readiness, consumer, settings)
    obey_signals(stop)
    log.info("consumer started", group=consumer.group)
    beside = [
        asyncio.create_task(obey(link, stop)),
        asyncio.create_task(report(link, readiness.probes(), incarnation=readiness.incarnation)),
    ]
    try:
        return await _consume(consumer, settings, stop, readiness, app_name=app_name, after=after)
    finally:
        for task in beside:
            task.cancel()
        link.close()


async def run_supervisor(app_name: str, settings: ConsumerSettings, *, processes: int) -> int:
    """Run *processes* workers until a signal, then drain them; return the exit code."""
    configure(level=settings.log_level, format=settings.log_format, stream=sys.stderr)
    options = ("--tiers", settings.tiers, "--broker", settings.broker)
    async with Stop() as stop:
        supervisor = Supervisor(
            lambda worker: own_command(
                "consumer", "worker", *options, "--after", worker.incarnation, app_name, str(worker.number)
            ),
            count=processes,
            drain_s=settings.drain_s,
            silent_s=settings.silent_s,
            stop=stop,
        )
        register_fleet(supervisor)
        async with _health(settings, supervisor.probes()) as health:
            log.info("supervisor started", workers=processes, health_port=health.port)
            code = await supervisor.run()
            log.info("supervisor ended", exit_code=code)
            return code


async def run_alone(consumer: Consumer, settings: ConsumerSettings, *, id: UUID, descriptor: int) -> int:
    """Handle suspects, if there are any, as the incarnation *id*, for the process at the other end of *descriptor*."""
    fields = {"suspect_pid": os.getpid()}
    configure(level=settings.log_level, format=settings.log_format, stream=sys.stderr, fields=fields)
    stop, link = Stop(), await parent(descriptor)
    obey_signals(stop)
    obeying = asyncio.create_task(obey(link, stop))
    _tell_webhook(consumer, settings)
    confine(
        memory_bytes=settings.suspect_memory_mb * 1024 * 1024,
        within_s=alone_s(consumer, settings.limits) + 2 * MARGIN_S,
    )
    try:
        await run_suspect(consumer, database_url(consumer, settings), incarnation=id, stop=stop, limits=settings.limits)
    except MemoryError:
        log.error("suspect out of memory", limit_mb=settings.suspect_memory_mb)
        _leave_at_once(TRY_AGAIN)
    obeying.cancel()
    return _leave_at_once(DONE)


async def run_isolated(consumer: Consumer, settings: ConsumerSettings, *, descriptor: int) -> int:
    """Run handlers one at a time for the process at the other end of *descriptor*, until it is gone."""
    fields = {"isolated_pid": os.getpid()}
    configure(level=settings.log_level, format=settings.log_format, stream=sys.stderr, fields=fields)
    await serve(consumer, await parent(descriptor))
    return _leave_at_once(DONE)


def _show(readiness: Readiness, consumer: Consumer, settings: ConsumerSettings) -> None:
    register(readiness, group=consumer.group, build=settings.version or "", slots=settings.slots)


def _health(settings: ConsumerSettings, probes: Mapping[str, Probe]) -> HealthServer:
    return HealthServer(host=settings.health_host, port=settings.health_port, probes=probes)


def _tell_webhook(consumer: Consumer, settings: ConsumerSettings) -> None:
    if settings.alert_url is not None:
        consumer.on_alert(WebhookAlerts(settings.alert_url.get_secret_value()).send)


async def _consume(
    consumer: Consumer,
    settings: ConsumerSettings,
    stop: Stop,
    readiness: Readiness,
    *,
    app_name: str,
    after: UUID | None = None,
) -> int:
    _tell_webhook(consumer, settings)
    if await are_reachable(lambda: check_services(consumer, settings), ended=stop.drain, within_s=settings.start_s):
        if after is not None:
            await _expire(consumer, settings, after)
        exchange, where = exchange_at(settings, name=_name(consumer)), ("--broker", settings.broker)
        collect_rarely()
        try:
            await run_consumer(
                consumer,
                broker_at(settings, name=_name(consumer), lease_s=settings.lease_s),
                exchange,
                database_url(consumer, settings),
                stop=stop,
                limits=settings.limits,
                queue_kind=settings.queue_kind,
                readiness=readiness,
                programs=Programs(
                    alone=lambda incarnation: own_command("consumer", "suspect", *where, app_name, str(incarnation)),
                    isolated=lambda: own_command("consumer", "isolated", *where, app_name),
                ),
            )
        finally:
            await exchange.close()
    log.info("consumer ended", group=consumer.group)
    code = TRY_AGAIN if stop.is_at_once or readiness.is_worn else DONE
    if readiness.abandoned_alive:
        _leave_at_once(code)
    return code


def collect_rarely() -> None:
    """Let the garbage collector pass over all that exists by now, which lasts as long as the process.

    Modules, models and mappers are 100,000 objects: each full collection would walk them all, and nothing else runs in
    the tens of milliseconds that it takes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AT)


async def _expire(consumer: Consumer, settings: ConsumerSettings, after: UUID) -> None:
    """Let the lease of *after*, whose process is known to be dead, end now: what it had in hand waits for nobody."""
    desk = Desk(database_url(consumer, settings), name=_name(consumer))
    try:
        with suppress(StoreUnavailable):  # then it runs out by itself
            async with desk.use() as connection:
                await incarnation.expire(connection, after)
    finally:
        await desk.close()


def _leave_at_once(code: int) -> NoReturn:
    """End the process although something in it goes on: a coroutine that swallows its cancellation keeps its loop."""
    sys.stderr.flush()
    os._exit(code)


async def check_services(consumer: Consumer, settings: ConsumerSettings) -> None:
    """Return if the database is migrated and the broker lets us in. Makes the group's own queues if need be.

    Raises:
        StoreUnavailable, BrokerUnavailable: one of them cannot be reached.
        OutboxError: one of them is not ours to use.
    """
    desk = Desk(database_url(consumer, settings), name=_name(consumer))
    exchange = exchange_at(settings, name=_name(consumer))
    try:
        async with desk.use() as connection:
            ring = await pruning.read_ring(connection)
        pruning.check_horizon(settings.limits.horizon, ring)
        await exchange.declare_group(consumer.group, settings.queue_kind)
    finally:
        await desk.close()
        await exchange.close()


def database_url(consumer: Consumer, settings: ConsumerSettings) -> str:
    """Where the ledger is: what the app says, else what the environment says."""
    return consumer.database if consumer.database is not None else settings.database_url.get_secret_value()


def _name(consumer: Consumer) -> str:
    return f"outbox-consumer {consumer.group}"
