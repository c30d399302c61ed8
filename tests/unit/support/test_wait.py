"""Waiting with a deadline."""

from collections.abc import Iterator

import pytest

from tests.support.wait import until


async def test_the_first_truthy_value_is_returned() -> None:
    values: Iterator[int] = iter([0, 0, 7, 8])
    assert await until(lambda: next(values), every_s=0.001) == 7


async def test_an_async_predicate_is_awaited() -> None:
    values = iter([None, "ready"])

    async def ask() -> str | None:
        return next(values)

    assert await until(ask, every_s=0.001) == "ready"


async def test_a_deadline_that_passes_says_what_was_waited_for_and_what_was_seen() -> None:
    with pytest.raises(AssertionError, match="waited 0 s for the lane to empty, last saw 0"):
        await until(lambda: 0, deadline_s=0.0, every_s=0.001, what="the lane to empty")


async def test_what_the_predicate_raises_is_not_waited_out() -> None:
    def broken() -> bool:
        raise LookupError("gone")

    with pytest.raises(LookupError):
        await until(broken)
