"""Listens beside the tenures for apps that say they have committed, and has the log read at once."""

import asyncio
import random
from contextlib import aclosing
from typing import Final

import structlog

from outbox.backoff import Jitter, backoff_s
from outbox.errors import OutboxError
from outbox.schema import WAKE_CHANNEL
from outbox.shell.notifications import notifications
from relay.engine.alarm import Alarm
from relay.gauges import Gauges

log = structlog.get_logger(__name__)

_BASE_S: Final = 0.5
_CAP_S: Final = 30.0


async def listen(url: str, alarm: Alarm, *, within_s: float, gauges: Gauges, rng: random.Random) -> None:
    """Ring *alarm* for every notification, until cancelled. It never fails: it connects again, and polling goes on."""
    failures = 0
    while True:
        try:
            async with aclosing(notifications(url, WAKE_CHANNEL, name="outbox-relay", within_s=within_s)) as heard:
                async for _ in heard:
                    gauges.is_listening = True
                    failures = 0
                    gauges.wakes += 1
                    alarm.ring()
        except OutboxError as error:
            failures += 1
            if failures == 1:
                log.warning("cannot be woken", reason=str(error))
        finally:
            gauges.is_listening = False
        await asyncio.sleep(backoff_s(max(1, failures), base_s=_BASE_S, cap_s=_CAP_S, jitter=Jitter.EQUAL, rng=rng))
