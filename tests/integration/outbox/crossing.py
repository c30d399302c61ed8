"""Two transactions that meet at a lock which a third one holds, so that the order of their other locks decides."""

import asyncio
from collections.abc import Callable
from functools import partial

import sqlalchemy as sa

from tests.support.wait import until

_WAITING = sa.text(
    "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
)


async def cross(engine: sa.Engine, *, held: str, first: Callable[[], None], second: Callable[[], None]) -> None:
    """Run *first* and *second* until both wait behind the locks of the statement *held*, then let them go.

    If they took their other locks in opposite orders, they deadlock, and the error is raised here.
    """

    def are_waiting(number: int) -> bool:
        with engine.connect() as connection:
            return bool(connection.scalar(_WAITING) == number)

    with engine.connect() as holder:
        holder.exec_driver_sql(held)
        calls = []
        for number, call in enumerate((first, second), start=1):
            calls.append(asyncio.create_task(asyncio.to_thread(call)))
            await until(partial(are_waiting, number), what=f"{number} transactions to wait")
        holder.rollback()
    await asyncio.gather(*calls)
