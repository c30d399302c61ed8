"""The relay as a process: signals, health, metrics and janitor around the engine."""

import asyncio
import contextlib
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog
from prometheus_client import REGISTRY

from outbox.shell.exits import DONE, TRY_AGAIN
from outbox.shell.health import Check, HealthServer, Probe
from outbox.shell.logs import configure
from outbox.shell.signals import Stop
from outbox.shell.startup import are_reachable
from relay.engine.janitor import run_janitor
from relay.engine.lookout import run_lookout
from relay.engine.loop import run_relay
from relay.engine.replayer import run_replays
from relay.gauges import Gauges
from relay.log import slots
from relay.log.sessions import opened
from relay.metrics import register
from relay.postgres.publisher import PostgresPublisher
from relay.rabbitmq.publisher import RabbitPublisher
from relay.settings import RelaySettings

log = structlog.get_logger(__name__)

# A step of the engine waits for a third of a lease at most: one that takes this many leases hangs.
_STEP_LEASES_MAX: Final = 2
_AGAIN_S: Final = 10.0
# No more often than metrics are commonly read.
_LOOK_EVERY_S: Final = 15.0
# New containers, beyond those freed meanwhile, before the collector looks for cycles; then how often it looks wider.
_COLLECT_AT: Final = (20_000, 50, 100)


async def run_process(settings: RelaySettings) -> int:
    """Run until a signal; return the exit code.

    Raises:
        StoreUnavailable, BrokerUnavailable: not reachable within ``start_s`` of the start.
        OutboxError: what else keeps a relay from working; see ``relay.engine.loop.run_relay``.
    """
    configure(level=settings.log_level, format=settings.log_format, stream=sys.stderr)
    collect_rarely()
    gauges = Gauges()
    register(gauges, REGISTRY)
    stop = asyncio.Event()
    async with Stop() as signals:
        probes = _probes(gauges, signals, hang_s=_STEP_LEASES_MAX * settings.lease_s)
        async with HealthServer(host=settings.health_host, port=settings.health_port, probes=probes) as health:
            log.info("relay started", health_port=health.port)
            work = asyncio.create_task(_work(settings, gauges, stop))
            first, second = asyncio.create_task(signals.drain()), asyncio.create_task(signals.at_once())
            try:
                await asyncio.wait({work, first}, return_when=asyncio.FIRST_COMPLETED)
                stop.set()
                await asyncio.wait({work, second}, return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    return TRY_AGAIN
                work.result()
                return DONE
            finally:
                for task in (work, first, second):
                    task.cancel()
                await asyncio.gather(work, first, second, return_exceptions=True)


def collect_rarely() -> None:
    """Let the garbage collector look for cycles less often than it does by default.

    What is read and published makes many objects and hardly a cycle, and thousands of waiting lanes would be walked
    over and over for nothing: about a tenth of the CPU.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECT_AT)


async def check_services(settings: RelaySettings) -> None:
    """Return if the database is the right one and the broker lets us in.

    Raises:
        StoreUnavailable, BrokerUnavailable: one of them cannot be reached.
        OutboxError: one of them is not ours to use.
    """
    async with opened(settings.database_url.get_secret_value(), settings.limits) as sessions:
        async with sessions.writing() as connection:
            ring = await slots.read_ring(connection, within_s=settings.limits.wait_s)
        slots.check_retention(settings.retention_s, ring)
        publisher = _publisher(settings)
        try:
            await publisher.open()
        finally:
            await publisher.close()


async def _work(settings: RelaySettings, gauges: Gauges, stop: asyncio.Event) -> None:
    if not await are_reachable(lambda: check_services(settings), ended=stop.wait, within_s=settings.start_s):
        return
    url, publisher = settings.database_url.get_secret_value(), _publisher(settings)
    again = _publisher(settings)
    beside = [
        asyncio.create_task(outlive(name, run, stop=stop))
        for name, run in (
            ("janitor", lambda: run_janitor(url, stop=stop, upkeep=settings.upkeep, gauges=gauges)),
            ("lookout", lambda: run_lookout(url, stop=stop, every_s=_LOOK_EVERY_S, gauges=gauges)),
            ("replays", lambda: run_replays(url, again, again, stop=stop, limits=settings.limits, gauges=gauges)),
        )
    ]
    try:
        await run_relay(
            url, publisher, publisher, stop=stop, limits=settings.limits, gauges=gauges, is_listening=settings.listen
        )
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


async def outlive(
    name: str, run: Callable[[], Awaitable[None]], *, stop: asyncio.Event, again_after_s: float = _AGAIN_S
) -> None:
    """Run what works beside the engine until *stop*: a bug in it is logged, and it begins anew after a while.

    Events flow without it, so it must not end the process; nor may it end and nobody know.
    """
    while not stop.is_set():
        try:
            await run()
        except Exception:
            log.exception("work beside the engine failed", work=name)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(again_after_s):
                await stop.wait()


def _publisher(settings: RelaySettings) -> RabbitPublisher | PostgresPublisher:
    if settings.rabbitmq_url is None or settings.broker == "postgres":
        return PostgresPublisher(
            url=(settings.broker_database_url or settings.database_url).get_secret_value(),
            connect_timeout_s=settings.limits.wait_s,
            body_bytes_max=settings.body_bytes_max,
        )
    return RabbitPublisher(
        url=settings.rabbitmq_url.get_secret_value(),
        queue_kind=settings.queue_kind,
        connect_timeout_s=settings.limits.wait_s,
        body_bytes_max=settings.body_bytes_max,
    )


def _probes(gauges: Gauges, signals: Stop, *, hang_s: float) -> Mapping[str, Probe]:
    def steps() -> Check:
        quiet_s = time.monotonic() - gauges.stepped_at
        return Check(
            is_ok=quiet_s < hang_s, detail=f"last step {quiet_s:.1f} s ago" if gauges.stepped_at else "no step yet"
        )

    def broker() -> Check:
        detail = "blocked" if gauges.is_blocked else "" if gauges.is_broker_up else "not connected"
        return Check(is_ok=gauges.is_broker_up and not gauges.is_blocked, detail=detail)

    return {
        "database": lambda: Check(is_ok=gauges.is_store_up, detail="" if gauges.is_store_up else "not connected"),
        "broker": broker,
        "loop": steps,
        "signals": lambda: Check(is_ok=not signals.is_draining, detail="ending" if signals.is_draining else ""),
    }
