"""Connections to PostgreSQL that notice a dead server, and its errors in our words."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Iterator
from typing import Final, TypeAlias

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outbox.errors import ConfigError, SchemaMissing, StoreRefused, StoreUnavailable
from outbox.shell.secrets import masked

Connection: TypeAlias = psycopg.AsyncConnection[tuple[object, ...]]

# A server that vanished without a word is given up after about half a minute, by the kernel of this side;
# without them a connection whose peer is gone waits for hours.
_KEEPALIVE: Final[dict[str, str | int | None]] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
_USER_TIMEOUT_MS: Final = 25_000
_MISSING: Final = (pg.UndefinedTable, pg.UndefinedColumn, pg.UndefinedFunction, pg.InvalidSchemaName)
# The server says these only in the text of a connection's failure: it gives no code before a session exists.
_REFUSALS: Final = ("does not exist", "password authentication failed", "no password supplied", "no pg_hba.conf entry")


def conninfo(url: str, *, application_name: str, connect_timeout_s: float = 5.0) -> str:
    """*url* as libpq wants it, with time limits and keepalives where it sets none itself.

    Args:
        url: ``postgresql://``, ``postgresql+psycopg://`` or a libpq ``key=value`` string.
        application_name: how the session is shown in ``pg_stat_activity``.

    Raises:
        ConfigError: it is none of these.
    """
    scheme, mark, rest = url.partition("://")
    plain = f"{scheme.partition('+')[0]}{mark}{rest}"
    try:
        given = conninfo_to_dict(plain)
    except psycopg.ProgrammingError as error:
        raise ConfigError(f"want a PostgreSQL address, got {masked(url)!r}: {_first_line(error)}") from error
    ours: dict[str, str | int | None] = {
        "application_name": application_name,
        # libpq counts whole seconds and takes less than two for two.
        "connect_timeout": math.ceil(connect_timeout_s),
        "tcp_user_timeout": _USER_TIMEOUT_MS,
        **_KEEPALIVE,
    }
    return make_conninfo("", **(ours | dict(given)))


async def connect(
    url: str, *, application_name: str, connect_timeout_s: float = 5.0, autocommit: bool = True
) -> Connection:
    """A new connection to *url*; the caller closes it.

    Raises:
        ConfigError: the address is wrong.
        StoreRefused: the server refuses this user, or has no such database.
        StoreUnavailable: the server cannot be reached.
    """
    info = conninfo(url, application_name=application_name, connect_timeout_s=connect_timeout_s)
    # libpq's limit is one per address of the host, and does not cover the look-up of its name.
    async with deadline(connect_timeout_s + 1.0, what="connecting to the database"):
        try:
            return await psycopg.AsyncConnection.connect(info, autocommit=autocommit)
        except psycopg.OperationalError as error:
            raise refused(error) from error


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Translate what psycopg raises inside, where it says something of the store and not of the statement.

    Raises:
        StoreUnavailable: the connection is lost, or the server is busy, ending, full or out of locks: try again.
        SchemaMissing: a table, column or function of ours is not there.
        ConfigError: this user may not do this.
    """
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise StoreUnavailable(f"the database is unavailable: {_first_line(error)}") from error
    except _MISSING as error:
        raise SchemaMissing(f"the database is not migrated (run 'outbox migrate'): {_first_line(error)}") from error
    except pg.InsufficientPrivilege as error:
        raise ConfigError(f"the database user lacks a privilege: {_first_line(error)}") from error


@contextlib.asynccontextmanager
async def deadline(seconds: float, *, what: str) -> AsyncIterator[None]:
    """End what runs inside after *seconds*; a connection it used is then in an unknown state and must be closed.

    Raises:
        StoreUnavailable: the time is up; the message says *what* was waited for.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError as error:
        # Another limit, further in or further out, is its owner's to explain.
        if not limit.expired():
            raise
        raise StoreUnavailable(f"{what} took longer than {seconds:g} s") from error


def refused(error: psycopg.OperationalError) -> StoreUnavailable:
    """What it means that a connection could not be opened."""
    said = _first_line(error)
    if "FATAL" in str(error) and any(words in str(error) for words in _REFUSALS):
        return StoreRefused(f"the database refuses this address: {said}")
    return StoreUnavailable(f"the database cannot be reached: {said}")


def _first_line(error: Exception) -> str:
    return masked((str(error).strip().splitlines() or [type(error).__name__])[0])
