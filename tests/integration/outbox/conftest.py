"""Engines on a migrated database that has the shop's tables too."""

from collections.abc import AsyncIterator, Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outbox import Outbox
from tests.integration.outbox.shop import Base, new_outbox


def psycopg_url(dsn: str) -> sa.URL:
    return sa.make_url(dsn).set(drivername="postgresql+psycopg")


@pytest.fixture
def url(migrated_database: str) -> sa.URL:
    return psycopg_url(migrated_database)


@pytest.fixture
def engine(url: sa.URL) -> Iterator[sa.Engine]:
    engine = sa.create_engine(url)
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
