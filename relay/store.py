"""Connections to the database: how a relay's sessions are set up, and what their errors mean.

A relay's plans must not depend on statistics: partitions are emptied and filled again under it, and a plan
that was right for an empty one reads a full one from end to end.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Final

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from outbox.errors import ConfigError, SchemaMissing, StoreUnavailable

Connection = AsyncConnection[TupleRow]

_CONNECT_S: Final = 5.0
_DEFAULTS: Final = {
    "application_name": "outbox-relay",
    "connect_timeout": str(int(_CONNECT_S)),
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
#: The relay's own sessions.
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
#: Sessions of people who ask: the planner knows best.
PLAIN: Final = {"default_transaction_isolation": "read committed", "timezone": "UTC"}


async def connect(dsn: str, settings: Mapping[str, str], *, statement_s: float) -> Connection:
    """Return an autocommit session with *settings*, in which the server ends what takes longer than *statement_s*.

    Raises:
        ConfigError: *dsn* is no connection string.
        StoreUnavailable: nobody answers, or the server refuses us for now.
    """
    try:
        conninfo = make_conninfo(dsn, **{**_DEFAULTS, **_given(dsn)})
    except psycopg.ProgrammingError:
        raise ConfigError("database URL: want postgresql://user@host/database, got another text") from None
    # A relay that freezes inside a transaction must not keep its bucket rows locked beyond its lease.
    millis = str(int(statement_s * 1000))
    wanted = {**settings, "statement_timeout": millis, "idle_in_transaction_session_timeout": millis}
    connection: Connection | None = None
    try:
        async with asyncio.timeout(2 * _CONNECT_S):
            connection = await AsyncConnection.connect(conninfo, autocommit=True, prepare_threshold=0)
            names, values = list(wanted), list(wanted.values())
            await connection.execute(
                "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS s (name, value)",
                (names, values),
            )
    except (psycopg.Error, TimeoutError) as error:
        if connection is not None:
            await connection.close()
        raise StoreUnavailable(f"database: want a connection, got {_sentence(error)}") from None
    return connection


@contextlib.asynccontextmanager
async def deadline(connection: Connection, seconds: float) -> AsyncIterator[None]:
    """Run statements on *connection* for at most *seconds*, and translate what the driver raises.

    A deadline severs the connection: cancelling a statement asks the very server that does not answer.

    Raises:
        StoreUnavailable: the connection is lost or was severed, or the server refuses work for now.
        SchemaMissing: a table or function of ours is not there.
        ConfigError: our role lacks a permission.
    """
    timer = asyncio.get_running_loop().call_later(seconds, _sever, connection)
    try:
        yield
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName) as error:
        raise SchemaMissing(f"database: want the outbox schema, got {_sentence(error)}") from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(f"database: want a role that may run the relay, got {_sentence(error)}") from None
    except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError, psycopg.IntegrityError) as error:
        raise StoreUnavailable(f"database: want an answer within {seconds:g} s, got {_sentence(error)}") from None
    finally:
        timer.cancel()


async def close(connection: Connection | None) -> None:
    """Close *connection*; safe to repeat."""
    if connection is not None:
        with contextlib.suppress(psycopg.Error):
            await connection.close()


def _given(dsn: str) -> dict[str, str]:
    return {name: str(value) for name, value in conninfo_to_dict(dsn).items() if name in _DEFAULTS}


def _sever(connection: Connection) -> None:
    if connection.closed:
        return
    # Through a duplicate: closing the driver's own descriptor under it would leave its waiter asleep for ever.
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as twin:
        twin.shutdown(socket.SHUT_RDWR)


def _sentence(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
