"""Waiting for the servers at the start."""

import asyncio
from collections.abc import Iterable

import pytest
from structlog.testing import capture_logs

from outbox.errors import BrokerUnavailable, OutboxError, StoreRefused, StoreUnavailable
from outbox.shell.startup import are_reachable


class _Check:
    """Fails with each of *errors* in turn, then holds."""

    def __init__(self, errors: Iterable[OutboxError]) -> None:
        self._errors = iter(errors)

    async def __call__(self) -> None:
        for error in self._errors:
            raise error


async def _never() -> None:
    await asyncio.Event().wait()


async def test_why_it_waits_is_logged_once_per_reason() -> None:
    away = StoreUnavailable("no database")
    with capture_logs() as logs:
        assert await are_reachable(_Check([away, away, BrokerUnavailable("no broker")]), ended=_never, within_s=60)
    assert [line["reason"] for line in logs] == ["no database", "no broker"]


async def test_who_is_refused_waits_for_nothing() -> None:
    with pytest.raises(StoreRefused):
        await are_reachable(_Check([StoreRefused("a wrong password")]), ended=_never, within_s=60)


async def test_what_is_still_away_when_time_is_up_is_said() -> None:
    with pytest.raises(StoreUnavailable):
        await are_reachable(_Check([StoreUnavailable("no database")] * 100), ended=_never, within_s=0.1)


async def test_who_is_asked_to_end_meanwhile_ends() -> None:
    async def at_once() -> None: ...

    assert not await are_reachable(_Check([StoreUnavailable("no database")] * 100), ended=at_once, within_s=60)
