"""The end of a process that was asked to end: nothing new starts, what runs finishes, the rest goes back uncharged."""

from contextlib import suppress

import structlog

from consumer.engine.lease import Lease
from consumer.engine.loop import Engine
from consumer.ports import Broker
from outbox.errors import StoreUnavailable
from outbox.shell.signals import Stop, first_of

_log = structlog.get_logger("consumer.engine.drain")


async def drain(engine: Engine, broker: Broker, lease: Lease, *, stop: Stop, within_s: float) -> None:
    """Let what runs finish, for *within_s* at most and not past a second request to stop; then hand everything back.

    Leases, heartbeats and the pump go on meanwhile: they are the caller's to end afterwards.
    """
    _log.info("draining", running=engine.hands.running, unstarted=len(engine.hands) - engine.hands.running)
    await engine.drain()
    await first_of(engine.is_empty.wait(), stop.at_once(), within_s=within_s)
    if engine.hands.running:
        _log.warning("stopped while handlers ran", running=engine.hands.running)
    engine.flush()
    # Acks are written before it closes, so what was done does not come again.
    await broker.stop()
    with suppress(StoreUnavailable):  # then the lease runs out by itself
        await lease.end()
    _log.info("drained")
