"""Deadlines: each is called back in its time, and only if nothing ended before."""

import asyncio

from consumer.engine.deadlines import Deadlines


async def test_what_is_removed_in_time_is_never_late_and_what_is_not_is() -> None:
    deadlines = Deadlines()
    late: list[int] = []
    has_rung = asyncio.Event()

    def be_late(number: int) -> None:
        late.append(number)
        if number == 4:
            has_rung.set()

    for number in range(5):
        deadlines.add(number, 0.02, lambda number=number: be_late(number))  # type: ignore[misc]
    deadlines.remove(0, 0.02)
    deadlines.remove(2, 0.02)
    async with asyncio.timeout(10):
        await has_rung.wait()

    assert late == [1, 3, 4]


async def test_one_that_comes_while_another_runs_has_all_of_its_own_time() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    began = loop.time()
    at: asyncio.Queue[float] = asyncio.Queue()
    deadlines.add("first", 0.05, lambda: at.put_nowait(loop.time()))
    loop.call_later(0.03, deadlines.add, "second", 0.05, lambda: at.put_nowait(loop.time()))
    async with asyncio.timeout(10):
        first, second = await at.get(), await at.get()

    assert first - began >= 0.05
    assert second - began >= 0.08


async def test_a_short_one_does_not_wait_for_a_long_one_that_came_before() -> None:
    deadlines, is_late = Deadlines(), asyncio.Event()
    deadlines.add("long", 3600.0, lambda: None)
    deadlines.add("short", 0.01, is_late.set)
    async with asyncio.timeout(10):
        await is_late.wait()


async def test_after_a_long_silence_deadlines_are_kept_as_before() -> None:
    deadlines, is_late = Deadlines(), asyncio.Event()
    deadlines.add("ended", 0.01, lambda: None)
    deadlines.remove("ended", 0.01)
    fence = asyncio.Event()
    asyncio.get_running_loop().call_later(0.03, fence.set)
    async with asyncio.timeout(10):
        await fence.wait()  # the timer has rung for nobody
        deadlines.add("late", 0.01, is_late.set)
        await is_late.wait()
