"""Servers for the examples: one database and one vhost for each file of tests, and a role of its own."""

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from tests.support.databases import fresh_database
from tests.support.services import Postgres, Rabbit, fresh_name
from tests.support.wait import until

LEASE_S = "3"
#: What every process of ours is told besides what a README says.
QUICK = {
    "OUTBOX_LOG_FORMAT": "json",
    "OUTBOX_RELAY_LEASE_S": LEASE_S,
    "OUTBOX_CONSUMER_LEASE_S": LEASE_S,
    "OUTBOX_RELAY_HEALTH_PORT": "0",
    "OUTBOX_CONSUMER_HEALTH_PORT": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An empty database, a vhost, and the URL of a role that is yet to be made."""

    owner_url: str
    role_url: str
    rabbitmq_url: str

    @property
    def role(self) -> str:
        """The name of the role."""
        return make_url(self.role_url).username or ""

    def rows(self, query: LiteralString, *parameters: object) -> list[tuple[Any, ...]]:
        """What *query* returns to the owner, a superuser."""
        with psycopg.connect(self.owner_url, autocommit=True) as connection:
            cursor = connection.execute(query, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, query: LiteralString, *parameters: object) -> Any:
        """The one value that *query* returns."""
        return self.rows(query, *parameters)[0][0]

    async def until_value(self, query: LiteralString, wanted: object, *parameters: object) -> None:
        """Wait until *query* returns *wanted*."""

        def is_there() -> bool:
            return bool(self.value(query, *parameters) == wanted)

        await until(is_there, deadline_s=30.0, every_s=0.05, what=f"{query} to be {wanted!r}")


@pytest.fixture(scope="module")
def place(postgres_node: Postgres, rabbit_node: Rabbit, _vhost_remover: ThreadPoolExecutor) -> Iterator[Place]:
    """Where a file's example runs."""
    vhost, role = fresh_name("vhost"), fresh_name("role")
    rabbit_node.management.add_vhost(vhost)
    with fresh_database(postgres_node, "example") as owner_url:
        role_url = make_url(owner_url).set(username=role, password=secrets.token_hex(8))
        yield Place(
            owner_url=owner_url,
            role_url=role_url.render_as_string(hide_password=False),
            rabbitmq_url=rabbit_node.url(vhost),
        )
    with psycopg.connect(postgres_node.dsn(), autocommit=True) as connection:
        connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(role)))
    _vhost_remover.submit(rabbit_node.management.delete_vhost, vhost)
