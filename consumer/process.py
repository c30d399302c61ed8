"""The consumer as one process or several: signals, health and metrics around the engine, RabbitMQ behind the ports."""

import asyncio
import sys

import structlog

from consumer.api import Consumer
from consumer.engine.run import Readiness, run_consumer
from consumer.metrics import register, register_fleet
from consumer.rabbitmq.broker import rabbitmq_broker
from consumer.rabbitmq.connection import Address
from consumer.rabbitmq.exchange import RabbitMQExchange
from consumer.settings import ConsumerSettings
from consumer.store import pruning
from consumer.store.desk import Desk
from consumer.supervisor import Supervisor
from consumer.webhook import WebhookAlerts
from consumer.worker import obey, obey_signals, report
from outbox.shell.child import own_command, parent
from outbox.shell.exits import DONE, TRY_AGAIN
from outbox.shell.health import HealthServer
from outbox.shell.logs import configure
from outbox.shell.signals import Stop
from outbox.shell.startup import are_reachable

log = structlog.get_logger(__name__)


async def run_process(consumer: Consumer, settings: ConsumerSettings) -> int:
    """Run until a signal, then drain; return the exit code.

    Raises:
        StoreUnavailable, BrokerUnavailable: not reachable within ``start_s`` of the start.
        OutboxError: what else keeps a consumer from working; see ``consumer.engine.run.run_consumer``.
    """
    configure(level=settings.log_level, format=settings.log_format, stream=sys.stderr)
    readiness = Readiness()
    register(readiness)
    async with Stop() as stop, HealthServer(port=settings.health_port, probes=readiness.probes()) as health:
        log.info("consumer started", group=consumer.group, health_port=health.port)
        return await _consume(consumer, settings, stop, readiness)


async def run_worker(consumer: Consumer, settings: ConsumerSettings, *, number: int, descriptor: int) -> int:
    """As ``run_process``, as the worker *number* of the supervisor at the other end of *descriptor*."""
    configure(level=settings.log_level, format=settings.log_format, stream=sys.stderr, fields={"worker": number})
    readiness, stop, link = Readiness(), Stop(), await parent(descriptor)
    register(readiness)
    obey_signals(stop)
    log.info("consumer started", group=consumer.group)
    beside = [
        asyncio.create_task(obey(link, stop)),
        asyncio.create_task(report(link, readiness.probes())),
    ]
    try:
        return await _consume(consumer, settings, stop, readiness)
    finally:
        for task in beside:
            task.cancel()
        link.close()


async def run_supervisor(app_name: str, settings: ConsumerSettings, *, processes: int) -> int:
    """Run *processes* workers until a signal, then drain them; return the exit code."""
    configure(level=settings.log_level, format=settings.log_format, stream=sys.stderr)
    async with Stop() as stop:
        supervisor = Supervisor(
            lambda number: own_command("consumer", "worker", "--tiers", settings.tiers, app_name, str(number)),
            count=processes,
            drain_s=settings.drain_s,
            silent_s=settings.silent_s,
            stop=stop,
        )
        register_fleet(supervisor)
        async with HealthServer(port=settings.health_port, probes=supervisor.probes()) as health:
            log.info("supervisor started", workers=processes, health_port=health.port)
            code = await supervisor.run()
            log.info("supervisor ended", exit_code=code)
            return code


async def _consume(consumer: Consumer, settings: ConsumerSettings, stop: Stop, readiness: Readiness) -> int:
    if settings.alert_url is not None:
        consumer.on_alert(WebhookAlerts(settings.alert_url.get_secret_value()).send)
    if await are_reachable(lambda: check_services(consumer, settings), ended=stop.drain, within_s=settings.start_s):
        exchange = RabbitMQExchange(_address(consumer, settings))
        try:
            await run_consumer(
                consumer,
                rabbitmq_broker(_address(consumer, settings)),
                exchange,
                database_url(consumer, settings),
                stop=stop,
                limits=settings.limits,
                queue_kind=settings.queue_kind,
                readiness=readiness,
            )
        finally:
            await exchange.close()
    log.info("consumer ended", group=consumer.group)
    return TRY_AGAIN if stop.is_at_once else DONE


async def check_services(consumer: Consumer, settings: ConsumerSettings) -> None:
    """Return if the database is migrated and the broker lets us in. Makes the group's own queues if need be.

    Raises:
        StoreUnavailable, BrokerUnavailable: one of them cannot be reached.
        OutboxError: one of them is not ours to use.
    """
    desk = Desk(database_url(consumer, settings), name=f"outbox-consumer {consumer.group}")
    exchange = RabbitMQExchange(_address(consumer, settings))
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


def _address(consumer: Consumer, settings: ConsumerSettings) -> Address:
    return Address(url=settings.rabbitmq_url.get_secret_value(), name=f"outbox-consumer {consumer.group}")
