"""How statements on tables that swing between empty and huge are planned.

A plan that was made for ten rows and kept for 100,000 reads them all; one made without statistics sorts where the
index has the order. Autovacuum mends both within minutes, which is too late for a queue.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, LiteralString

from psycopg import AsyncCursor
from psycopg.rows import TupleRow

from consumer.store.stored import Connection


async def fresh(
    connection: Connection, query: LiteralString | bytes, values: Mapping[str, object]
) -> AsyncCursor[TupleRow]:
    """Run *query* with a plan for the tables' size of this moment, never with one that was kept."""
    return await connection.execute(query, values, prepare=False)


@asynccontextmanager
async def by_index(connection: Connection) -> AsyncIterator[None]:
    """A transaction whose statements follow indexes wherever one fits, whatever the statistics say.

    Within a transaction of the caller it is a savepoint, and the settings last until that transaction ends.
    """
    async with connection.transaction():
        await connection.execute(_BY_INDEX)
        yield


_BY_INDEX: Final = """
    SELECT set_config(name, 'off', true)
    FROM unnest(ARRAY['enable_seqscan', 'enable_bitmapscan', 'enable_sort', 'enable_hashjoin', 'enable_mergejoin',
                      'jit']) name
"""
