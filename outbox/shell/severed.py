"""Sessions whose waits end by this side's clock, also against a server that is frozen and answers nothing.

A cancelled driver asks the server to give up and waits for its answer; so what takes too long is severed instead.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, TypeAlias, cast

import psycopg

from outbox.errors import StoreUnavailable
from outbox.shell import database
from outbox.shell.secrets import masked

Connection: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]

#: What must not depend on statistics: tables are emptied and filled again under a running process, and a plan that was
#: right for an empty one reads a full one from end to end. No setting keeps a join by key from comparing all with all
#: where few rows are believed in, so many keys are looked up each by itself (LATERAL, OFFSET 0) and changed by ctid.
FIXED_PLANS: Final = {
    # A snapshot kept from statement to statement would hide what was committed since.
    "default_transaction_isolation": "read committed",
    "timezone": "UTC",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_mergejoin": "off",
    "enable_hashjoin": "off",
}
#: Sessions of those who ask: the planner knows best. It compiles nothing: for the ring's partitions, of which it knows
#: nothing before they are analysed, that takes seconds in which the server cannot be asked to stop, and saves none.
ANY_PLAN: Final = {"default_transaction_isolation": "read committed", "timezone": "UTC", "jit": "off"}

_SET: Final = "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS s (name, value)"


async def connect(
    url: str, settings: Mapping[str, str], *, application_name: str, connect_s: float, statement_s: float
) -> Connection:
    """Return an autocommit session with *settings*, in which the server ends what takes longer than *statement_s*.

    Raises:
        ConfigError: *url* is no address.
        StoreUnavailable: nobody answers, or the server refuses us.
    """
    opened = await database.connect(url, application_name=application_name, connect_timeout_s=connect_s)
    connection = cast("Connection", opened)
    connection.prepare_threshold = 0
    # A process that freezes inside a transaction must not keep rows locked beyond its lease.
    millis = str(int(statement_s * 1000))
    wanted = {**settings, "statement_timeout": millis, "idle_in_transaction_session_timeout": millis}
    try:
        async with deadline(connection, connect_s):
            await connection.execute(_SET, (list(wanted), list(wanted.values())))
    except BaseException:
        await connection.close()
        raise
    return connection


@contextlib.asynccontextmanager
async def deadline(connection: Connection, seconds: float) -> AsyncIterator[None]:
    """Run statements on *connection* for at most *seconds*, and say in our words what the driver raises.

    When the time is up the connection is severed, not the statement cancelled: a cancelled driver asks the
    server to give up and waits for its answer, and it is the server that does not answer.

    Raises:
        StoreUnavailable: the connection is lost or was severed, or the server refuses work for now.
        SchemaMissing: a table or function of ours is not there.
        ConfigError: our role lacks a permission.
    """
    is_over = False

    def give_up() -> None:
        nonlocal is_over
        is_over = True
        sever(connection)

    timer = asyncio.get_running_loop().call_later(seconds, give_up)
    try:
        with database.store_errors():
            yield
    except StoreUnavailable:
        if is_over:
            raise StoreUnavailable(f"the database is unavailable: no answer within {seconds:g} s") from None
        raise
    except (psycopg.InternalError, psycopg.IntegrityError) as error:
        # A server that turned read-only, or a group that was removed under us: begin anew.
        said = masked(str(error).strip().splitlines()[0])
        raise StoreUnavailable(f"the database is unavailable: {said}") from error
    finally:
        timer.cancel()


async def close(connection: Connection | None) -> None:
    """Close *connection*; safe to repeat."""
    if connection is not None:
        with contextlib.suppress(psycopg.Error):
            await connection.close()


def sever(connection: Connection) -> None:
    """Break *connection* from this side: whoever waits for an answer on it hears at once that none will come."""
    if connection.closed:
        return
    # Through a duplicate: closing the driver's own descriptor under it would leave its waiter asleep for ever.
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as twin:
        twin.shutdown(socket.SHUT_RDWR)
