"""The demo's course: commit, kill on the way, wait until everything is handled, count."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from psycopg import AsyncConnection
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.schema import CreateSchema, DropSchema

from outbox.errors import StoreUnavailable
from outbox_admin.demo import report
from outbox_admin.demo.app import NOISY_ORDERS, NOISY_TENANT, QUIET_TENANTS, Shop, metadata
from outbox_admin.demo.processes import Processes

_TRICKLE_S: Final = 12.0
# A busy machine takes its time, and nothing but time.
_DEADLINE_S: Final = 240.0
_LOOK_EVERY_S: Final = 0.2
# Both while the flood is under way, so that each dies with work in its hands.
_KILL_RELAY_AT: Final = NOISY_ORDERS // 5
_KILL_CONSUMER_AT: Final = NOISY_ORDERS // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the demo found out."""

    counts: list[report.TenantCounts]
    suppressed: Mapping[str, int]


async def run(pipeline: Processes, *, database_url: str, console: Console) -> Result:
    """Run the demo on a migrated database and return what was counted.

    Raises:
        StoreUnavailable: it was not through within its time.
    """
    engine = create_async_engine(make_url(database_url).set(drivername="postgresql+psycopg"))
    try:
        async with engine.begin() as connection:
            await connection.execute(DropSchema("demo", cascade=True, if_exists=True))
            await connection.execute(CreateSchema("demo"))
            await connection.run_sync(metadata.create_all)
        async with await AsyncConnection.connect(database_url, autocommit=True) as watcher:
            began = await report.read_clock(watcher)
            await pipeline.start()
            async with _running(_emit(Shop(engine=engine))) as emitting:
                await _watch(pipeline, watcher, emitting, console)
            return Result(counts=await report.read_counts(watcher, since=began), suppressed=pipeline.suppressed())
    finally:
        await engine.dispose()


async def _emit(shop: Shop) -> None:
    rng = random.Random(7)  # noqa: S311 - pauses between orders
    async with asyncio.TaskGroup() as tasks:
        for tenant in QUIET_TENANTS:
            tasks.create_task(shop.trickle(tenant, seconds=_TRICKLE_S, rng=rng))
        tasks.create_task(shop.flood())


@asynccontextmanager
async def _running(work: Awaitable[None]) -> AsyncIterator[asyncio.Future[None]]:
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _watch(
    pipeline: Processes, watcher: AsyncConnection, emitting: asyncio.Future[None], console: Console
) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + _DEADLINE_S
    kills = [
        (_KILL_RELAY_AT, "relay killed in mid-batch, and started again", pipeline.kill_relay),
        (_KILL_CONSUMER_AT, "consumer killed in mid-batch, and started again", pipeline.kill_consumer),
    ]
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        noisy = bars.add_task(f"{NOISY_TENANT} tenant, handled", total=NOISY_ORDERS)
        quiet = bars.add_task("19 quiet ones, handled", total=None)
        while True:
            progress = await report.read_progress(watcher)
            bars.update(noisy, completed=progress.handled - progress.quiet_handled)
            bars.update(quiet, completed=progress.quiet_handled, total=progress.quiet_committed)
            if kills and progress.handled >= kills[0][0]:
                _, line, kill = kills.pop(0)
                console.print(line)
                await kill()
            pipeline.check()
            if emitting.done():
                emitting.result()
                if progress.is_drained and not kills:
                    return
            if loop.time() > until:
                raise StoreUnavailable(
                    f"demo: want everything handled within {_DEADLINE_S:g} s, got {progress.handled} of"
                    f" {progress.committed}"
                )
            await asyncio.sleep(_LOOK_EVERY_S)
