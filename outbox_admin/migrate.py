"""The migration chains, applied from the installed package: no ini file, no working directory."""

import io
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Literal

import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError

from migrations.ring import LEDGER_RING, LOG_RING, Ring
from outbox import queues
from outbox.shell.database import conninfo, refused, store_errors

Chain = Literal["outbox", "consumer", "broker"]
CHAINS: tuple[Chain, ...] = ("outbox", "consumer", "broker")

_SCHEMAS: Mapping[Chain, str] = {"outbox": "outbox", "consumer": "consumer", "broker": queues.SCHEMA}

_CONTENTS = """
    SELECT coalesce(array_agg(DISTINCT n.nspname::text), '{}'), count(*),
           coalesce(sum(greatest(c.reltuples, s.n_live_tup, 0)), 0)::bigint,
           coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
    WHERE c.relkind = 'r' AND n.nspname = ANY (:schemas)
"""

# One number for all chains: two that migrate at once take turns.
_LOCK = 0x6661697270


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Where a chain stands: *current* is ``None`` on an empty database."""

    chain: Chain
    current: str | None
    newest: str

    @property
    def is_current(self) -> bool:
        """Whether nothing is left to apply."""
        return self.current == self.newest


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What is in the *schemas* of ours that there are; *rows* by the database's own estimate."""

    schemas: tuple[str, ...]
    tables: int
    rows: int
    size_bytes: int


def upgrade(url: str, *, chains: tuple[Chain, ...] = CHAINS, ring: Ring | None = None) -> None:
    """Bring *chains* to their newest revision. Safe to repeat, and to run from several places at once.

    Raises:
        StoreUnavailable: the database cannot be reached.
        ConfigError: the address is wrong, or this user may not do this.
    """
    with _connection(url) as connection:
        for chain in chains:
            command.upgrade(_config(chain, connection, ring=ring), "head")


def downgrade(url: str, *, chains: tuple[Chain, ...] = CHAINS) -> None:
    """Remove every table of *chains*, with what is in them."""
    with _connection(url) as connection:
        for chain in chains:
            command.downgrade(_config(chain, connection), "base")


def sql(*, chains: tuple[Chain, ...] = CHAINS, down: bool = False) -> str:
    """The SQL that ``upgrade`` (or ``downgrade``) of an empty (or newest) database runs, as text."""
    text_of_chains = io.StringIO()
    for chain in chains:
        config = _config(chain, None, output=text_of_chains)
        if down:
            command.downgrade(config, "head:base", sql=True)
        else:
            command.upgrade(config, "head", sql=True)
    return text_of_chains.getvalue()


def contents(url: str, *, chains: tuple[Chain, ...] = CHAINS) -> Contents:
    """What ``downgrade`` of *chains* would remove."""
    with _connection(url) as connection:
        schemas, tables, rows, size_bytes = connection.execute(
            text(_CONTENTS), {"schemas": [_SCHEMAS[chain] for chain in chains]}
        ).one()
    return Contents(schemas=tuple(schemas), tables=tables, rows=rows, size_bytes=size_bytes)


def status(url: str, *, chains: tuple[Chain, ...] = CHAINS) -> list[Status]:
    """Where each of *chains* stands."""
    with _connection(url) as connection:
        return [
            Status(
                chain=chain,
                current=MigrationContext.configure(
                    connection, opts={"version_table_schema": _SCHEMAS[chain]}
                ).get_current_revision(),
                newest=newest(chain),
            )
            for chain in chains
        ]


def newest(chain: Chain) -> str:
    """The revision that *chain* should stand at. Asks no database."""
    return ScriptDirectory.from_config(_config(chain, None)).get_current_head() or ""


def schema_of(chain: Chain) -> str:
    """The schema that *chain*'s tables are in."""
    return _SCHEMAS[chain]


def _config(
    chain: Chain, connection: Connection | None, *, ring: Ring | None = None, output: io.StringIO | None = None
) -> Config:
    config = Config(output_buffer=output) if output is not None else Config()
    config.set_main_option("script_location", f"migrations:{chain}")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    config.attributes["ring"] = ring or (LOG_RING if chain == "outbox" else LEDGER_RING)
    return config


@contextmanager
def _connection(url: str) -> Iterator[Connection]:
    try:
        raw = psycopg.connect(conninfo(url, application_name="outbox migrate"))
    except psycopg.OperationalError as error:
        raise refused(error) from error
    engine = create_engine("postgresql+psycopg://", creator=lambda: raw, poolclass=NullPool, hide_parameters=True)
    with closing(raw), store_errors():
        try:
            with engine.begin() as connection:
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
                yield connection
        except DBAPIError as error:
            raise (error.orig or error) from None
