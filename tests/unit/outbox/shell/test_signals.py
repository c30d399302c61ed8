"""The first signal drains, the second stops."""

import asyncio
import os
import signal

import pytest

from outbox.shell.signals import Stop


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_asks_to_drain_and_the_second_to_stop_at_once(
    first: signal.Signals, second: signal.Signals
) -> None:
    async with Stop() as stop:
        os.kill(os.getpid(), first)
        await asyncio.wait_for(stop.drain(), 5)
        assert (stop.is_draining, stop.is_at_once) == (True, False)
        os.kill(os.getpid(), second)
        await asyncio.wait_for(stop.at_once(), 5)
        assert stop.is_at_once


async def test_signals_have_their_old_meaning_afterwards() -> None:
    async with Stop():
        pass
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


async def test_a_request_without_a_signal_counts_the_same() -> None:
    stop = Stop()
    assert not stop.is_draining
    stop.request()
    assert (stop.is_draining, stop.is_at_once) == (True, False)
    stop.request()
    assert stop.is_at_once
