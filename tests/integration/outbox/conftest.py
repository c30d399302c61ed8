"""Engines on a migrated database that has the shop's tables too; it is shared, and emptied before each test."""

from collections.abc import AsyncIterator, Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outbox import Outbox
from tests.integration.outbox.shop import Base, new_outbox
from tests.support.databases import fresh_database
from tests.support.services import Postgres

_EMPTY = """
    delete from outbox.event; delete from outbox.scheduled; delete from outbox.ordering; delete from outbox.key;
    truncate orders, wallets restart identity;
"""


def psycopg_url(dsn: str) -> sa.URL:
    return sa.make_url(dsn).set(drivername="postgresql+psycopg")


@pytest.fixture(scope="session")
def shared_engine(postgres_node: Postgres, migrated_template: str) -> Iterator[sa.Engine]:
    """The shop's database, as the last test left it."""
    with fresh_database(postgres_node, "shop", template=migrated_template) as dsn:
        engine = sa.create_engine(psycopg_url(dsn))
        Base.metadata.create_all(engine)
        yield engine
        engine.dispose()


@pytest.fixture
def engine(shared_engine: sa.Engine) -> sa.Engine:
    """The shop's database, empty."""
    with shared_engine.begin() as connection:
        connection.exec_driver_sql(_EMPTY)
    return shared_engine


@pytest.fixture
def own_engine(migrated_database: str) -> Iterator[sa.Engine]:
    """A shop's database that the test may alter."""
    engine = sa.create_engine(psycopg_url(migrated_database))
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
async def async_engine(engine: sa.Engine) -> AsyncIterator[AsyncEngine]:
    async_engine = create_async_engine(engine.url)
    yield async_engine
    await async_engine.dispose()


@pytest.fixture
def outbox() -> Outbox:
    return new_outbox()
