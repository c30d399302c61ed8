"""What works beside the engine."""

import asyncio

import structlog

from relay.process import outlive


async def test_work_beside_the_engine_that_meets_a_bug_is_heard_of_and_begins_anew() -> None:
    stop = asyncio.Event()
    runs: list[int] = []

    async def run() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise ZeroDivisionError
        await stop.wait()

    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(outlive("janitor", run, stop=stop, again_after_s=0.001))
        async with asyncio.timeout(5):
            while len(runs) < 3:
                await asyncio.sleep(0)
            stop.set()
            await task
    assert [(line["event"], line["work"], line["log_level"]) for line in logs] == [
        ("work beside the engine failed", "janitor", "error")
    ] * 2
