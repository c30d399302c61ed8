"""Fixtures for apps' tests; pytest finds them once the package is installed. What they need is imported when used."""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from consumer.api import Consumer
    from outbox_admin.harness import Harness

SERVER = "OUTBOX_TEST_DATABASE_URL"


@pytest.fixture(scope="session")
def outbox_database_url() -> Iterator[str]:
    """The URL of a fresh, migrated database, dropped at the end.

    It is made on the server of ``OUTBOX_TEST_DATABASE_URL``, else on a private one, started for the tests from local
    binaries or those of the extra ``demo``. Override the fixture to make your own tables in it too.
    """
    import psycopg
    from psycopg import sql
    from sqlalchemy import make_url

    from outbox.shell.database import conninfo
    from outbox_admin import migrate
    from outbox_admin.embedded import PostgresNode, find_binaries

    with ExitStack() as stack:
        given = os.environ.get(SERVER)
        server = given or stack.enter_context(PostgresNode(binaries=find_binaries(), durable=False)).dsn()
        name = f"outbox_test_{secrets.token_hex(6)}"
        admin = stack.enter_context(psycopg.connect(conninfo(server, application_name=name), autocommit=True))
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'").format(sql.Identifier(name)))
        stack.callback(lambda: admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))))
        url = make_url(server).set(database=name).render_as_string(hide_password=False)
        migrate.upgrade(url)
        yield url


@pytest.fixture
def outbox_harness(outbox_database_url: str) -> Iterator[Callable[["Consumer"], "Harness"]]:
    """Call it with your consumer: its handlers run on ``outbox_database_url`` until the test ends."""
    from outbox_admin.harness import Harness

    with ExitStack() as stack:
        yield lambda consumer: stack.enter_context(Harness(consumer, outbox_database_url))
