"""The relay's engine: one tenure after another, until it is told to stop."""

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import structlog

from outbox.backoff import Jitter, backoff_s
from outbox.errors import IsStandby, LeaseLost, StoreUnavailable
from relay.engine.alarm import Alarm
from relay.engine.listener import listen
from relay.engine.tenure import Tenure
from relay.gauges import Gauges
from relay.limits import Limits
from relay.log import leases
from relay.log.sessions import opened
from relay.ports import LaneTopology, Publisher

log = structlog.get_logger(__name__)

_BASE_S = 0.2
_CAP_S = 5.0
# A tenure that lasted this long shows that the database works: the next failure is the first again.
_STEADY_S = 10.0
# A tenure may end before it has taken what the one before it held.
_FORMER_MAX = 8


async def run_relay(
    url: str,
    publisher: Publisher,
    topology: LaneTopology,
    *,
    stop: asyncio.Event,
    limits: Limits | None = None,
    gauges: Gauges | None = None,
    rng: random.Random | None = None,
    is_listening: bool = False,
) -> None:
    """Publish what is in the log of the database at *url*, until *stop*; then hand over and return.

    Outages of the database and the broker are waited out, and lost leases forgotten; neither costs an event an
    attempt. Cancelling it is a crash: nothing is lost, up to ``limits.window`` events are published again,
    and the leases run out by themselves.

    Args:
        gauges: is written to, for whoever shows it.
        rng: draws the jitter of every wait.
        is_listening: also read the log at once when an app says that it has committed.

    Raises:
        WrongDatabase: not the database that the stored positions belong to, or a standby at the start: one that is
            met later is waited out, since a failover may lead there for a moment.
        SchemaMissing: the database is not migrated.
        ConfigError: the role lacks a permission.
    """
    limits, gauges, rng = limits or Limits(), gauges or Gauges(), rng or random.SystemRandom()
    alarm = Alarm()
    async with _listening(url, alarm, limits=limits, gauges=gauges, rng=rng) if is_listening else nullcontext():
        await _tenures(url, publisher, topology, stop=stop, alarm=alarm, limits=limits, gauges=gauges, rng=rng)


async def _tenures(
    url: str,
    publisher: Publisher,
    topology: LaneTopology,
    *,
    stop: asyncio.Event,
    alarm: Alarm,
    limits: Limits,
    gauges: Gauges,
    rng: random.Random,
) -> None:
    former: deque[int] = deque(maxlen=_FORMER_MAX)
    failures = 0
    while not stop.is_set():
        began = time.monotonic()
        try:
            async with opened(url, limits) as sessions:
                gauges.is_store_up = True
                async with sessions.writing() as connection:
                    token = await leases.new_token(connection, within_s=limits.wait_s)
                tenure = Tenure(
                    token,
                    publisher,
                    topology,
                    sessions=sessions,
                    former=tuple(former),
                    alarm=alarm,
                    limits=limits,
                    gauges=gauges,
                    rng=rng,
                )
                former.append(token)
                try:
                    await tenure.run(stop)
                finally:
                    await tenure.close()
        except (StoreUnavailable, IsStandby) as error:
            if isinstance(error, IsStandby) and not former:
                raise
            gauges.store_losses += 1
            log.warning("database lost", reason=str(error))
        except LeaseLost as error:
            gauges.leases_lost += 1
            log.warning("leases lost", reason=str(error))
        finally:
            gauges.is_store_up = False
        failures = 1 if time.monotonic() - began > _STEADY_S else failures + 1
        await _wait(stop, backoff_s(failures, base_s=_BASE_S, cap_s=_CAP_S, jitter=Jitter.EQUAL, rng=rng))


@asynccontextmanager
async def _listening(
    url: str, alarm: Alarm, *, limits: Limits, gauges: Gauges, rng: random.Random
) -> AsyncIterator[None]:
    listening = asyncio.create_task(listen(url, alarm, within_s=limits.wait_s, gauges=gauges, rng=rng))
    try:
        yield
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
