"""A process's first seconds: servers that start at the same time as it are waited for."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from outbox.errors import BrokerRefused, BrokerUnavailable, StoreRefused, StoreUnavailable

_RETRY_S: Final = 0.5
log = structlog.get_logger(__name__)


async def are_reachable(
    check: Callable[[], Awaitable[None]], *, ended: Callable[[], Awaitable[object]], within_s: float
) -> bool:
    """Try *check* until it returns; False if *ended* returned before it did. Why it waits is logged once per reason.

    Raises:
        StoreUnavailable, BrokerUnavailable: *check* still raised it after *within_s*.
        StoreRefused, BrokerRefused, and what else *check* raises: at once.
    """
    until, told = time.monotonic() + within_s, ""
    ending = asyncio.ensure_future(ended())
    try:
        while not ending.done():
            try:
                await check()
            except (StoreRefused, BrokerRefused):
                raise
            except (StoreUnavailable, BrokerUnavailable) as error:
                if time.monotonic() > until:
                    raise
                if str(error) != told:
                    told = str(error)
                    log.warning("waiting for a service", reason=told)
                await asyncio.wait({ending}, timeout=_RETRY_S)
            else:
                return True
        return False
    finally:
        ending.cancel()
