"""Connections to the database that the queues are in, and its errors in a broker's words."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Final

import psycopg

from outbox.errors import BrokerRefused, BrokerUnavailable, StoreRefused, StoreUnavailable
from outbox.shell import severed
from outbox.shell.severed import Connection

_CHECK: Final = "SELECT 1 FROM outbox_broker.queue LIMIT 1"


async def connect(url: str, *, name: str, within_s: float, may_forget: bool = False) -> Connection:
    """A session in which a statement takes *within_s* at most; the queues are there.

    Args:
        name: how the session is shown in ``pg_stat_activity``.
        may_forget: a crash of the server may undo the session's last commits. Claims and settlements may: what was
            taken is handed out again, which the ledger absorbs.

    Raises:
        BrokerUnavailable: the database cannot be reached, or refuses us.
        SchemaMissing, ConfigError: it is not ours to use.
    """
    settings = severed.FIXED_PLANS | ({"synchronous_commit": "off"} if may_forget else {})
    with broker_errors():
        connection = await severed.connect(
            url, settings, application_name=name, connect_s=within_s, statement_s=within_s
        )
    try:
        async with deadline(connection, within_s):
            await connection.execute(_CHECK)
    except BaseException:
        await severed.close(connection)
        raise
    return connection


@contextlib.asynccontextmanager
async def deadline(connection: Connection, seconds: float) -> AsyncIterator[None]:
    """As ``outbox.shell.severed.deadline``. Raises BrokerUnavailable for StoreUnavailable."""
    with broker_errors():
        async with severed.deadline(connection, seconds):
            yield


@contextlib.contextmanager
def broker_errors() -> Iterator[None]:
    """Say of the queues' database what is said of a broker."""
    try:
        yield
    except (StoreUnavailable, psycopg.Error) as error:
        kind = BrokerRefused if isinstance(error, StoreRefused) else BrokerUnavailable
        raise kind(f"queues in PostgreSQL: {error}") from error
