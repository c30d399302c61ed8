"""Group commit: what is asked together is written together, and one that cannot be spoils no other."""

import asyncio
from collections.abc import Sequence

import pytest

from consumer.engine.group_commit import GroupCommit
from outbox.errors import LeaseLost, StoreUnavailable


async def test_what_comes_while_a_batch_is_written_is_the_next_one() -> None:
    batches: list[list[int]] = []
    is_written = asyncio.Event()

    async def write(items: Sequence[int]) -> list[int]:
        batches.append(list(items))
        await is_written.wait()
        return [item * 10 for item in items]

    commits: GroupCommit[int, int] = GroupCommit(write)
    first = [asyncio.create_task(commits.ask(number)) for number in range(3)]
    while not batches:
        await asyncio.sleep(0)
    second = [asyncio.create_task(commits.ask(number)) for number in range(3, 6)]
    await asyncio.sleep(0)
    is_written.set()
    assert await asyncio.gather(*first, *second) == [0, 10, 20, 30, 40, 50]
    assert batches == [[0, 1, 2], [3, 4, 5]]


async def test_one_that_cannot_be_written_spoils_no_other() -> None:
    async def write(items: Sequence[int]) -> list[int]:
        if 2 in items:
            raise LeaseLost("no")
        return list(items)

    commits: GroupCommit[int, int] = GroupCommit(write)
    answers = await asyncio.gather(*(commits.ask(number) for number in range(4)), return_exceptions=True)
    assert [answer if isinstance(answer, int) else type(answer) for answer in answers] == [0, 1, LeaseLost, 3]


async def test_an_outage_is_told_to_all_and_tried_once() -> None:
    tries: list[int] = []

    async def write(items: Sequence[int]) -> list[int]:
        tries.append(len(items))
        raise StoreUnavailable("away")

    commits: GroupCommit[int, int] = GroupCommit(write)
    answers = await asyncio.gather(*(commits.ask(number) for number in range(4)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 4
    assert tries == [4]


async def test_who_stopped_waiting_is_nobodys_trouble() -> None:
    async def write(items: Sequence[int]) -> list[int]:
        return list(items)

    commits: GroupCommit[int, int] = GroupCommit(write)
    gone = asyncio.create_task(commits.ask(1))
    stays = asyncio.create_task(commits.ask(2))
    await asyncio.sleep(0)
    gone.cancel()
    assert await stays == 2
    with pytest.raises(asyncio.CancelledError):
        await gone
    await commits.close()
