"""An app's session on the test's own database, and a broker beside it."""

from collections.abc import Iterator

import psycopg
import pytest

from outbox.inprocess import InProcessBroker
from tests.integration.relay.running import App


@pytest.fixture
def url(migrated_database: str) -> str:
    """The database under test."""
    return migrated_database


@pytest.fixture
def app(url: str) -> Iterator[App]:
    """A session that commits when it is told to."""
    with psycopg.connect(url) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def other(url: str) -> Iterator[App]:
    """One more."""
    with psycopg.connect(url) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def broker() -> InProcessBroker:
    return InProcessBroker()
