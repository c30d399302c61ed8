"""A nap ends when the alarm rings, once, and never takes what is not its own for a ring."""

import asyncio
import time

import pytest

from relay.engine.alarm import Alarm

_LONG_S = 30.0


async def napping(alarm: Alarm, started: asyncio.Event) -> str:
    async with alarm.nap():
        started.set()
        await asyncio.sleep(_LONG_S)
        return "slept"
    return "woken"


async def test_a_ring_ends_the_nap_however_often_it_rings() -> None:
    alarm, started = Alarm(), asyncio.Event()
    nap = asyncio.create_task(napping(alarm, started))
    await started.wait()
    for _ in range(3):
        alarm.ring()

    assert await asyncio.wait_for(nap, 5) == "woken"


async def test_a_ring_between_naps_is_kept_in_its_time_and_ends_no_later_nap() -> None:
    alarm, started = Alarm(), asyncio.Event()
    alarm.ring()
    nap = asyncio.create_task(napping(alarm, started))
    await started.wait()
    await asyncio.sleep(0)

    assert not nap.done()
    assert time.monotonic() - alarm.rang_at < _LONG_S
    nap.cancel()
    with pytest.raises(asyncio.CancelledError):
        await nap


async def test_a_time_limit_inside_a_nap_is_not_taken_for_a_ring() -> None:
    alarm = Alarm()
    with pytest.raises(TimeoutError):
        async with alarm.nap():
            raise TimeoutError
