"""Servers for one benchmark: given by DATABASE_URL and RABBITMQ_URL, else private ones of its own."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from outbox_admin import migrate
from tests.support.databases import fresh_database
from tests.support.services import GivenPostgres, Report, find_postgres, find_rabbit, fresh_name

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """A migrated database and a vhost, both fresh, and what they run on."""

    database_url: str
    rabbitmq_url: str
    versions: dict[str, str]


@contextmanager
def servers() -> Iterator[Servers]:
    """Start what is not given; everything that was made or started is gone at the end."""
    report = Report()
    postgres = find_postgres(report, environment=os.environ)
    rabbit = find_rabbit(report, environment=os.environ)
    vhost = fresh_name("bench")
    try:
        rabbit.management.add_vhost(vhost)
        with fresh_database(postgres, "bench") as database_url:
            migrate.upgrade(database_url)
            yield Servers(database_url=database_url, rabbitmq_url=rabbit.url(vhost), versions=report.servers)
    finally:
        rabbit.management.delete_vhost(vhost)
        rabbit.close()
        postgres.close()


def on_servers(work: Callable[[Servers], Coroutine[object, object, T]]) -> T:
    """What *work* comes to on servers that are there for it alone."""
    with servers() as given:
        print(given.versions, file=sys.stderr)
        return asyncio.run(work(given))


@contextmanager
def with_another_database(given: Servers) -> Iterator[Servers]:
    """*given* with one more migrated database on the same server."""
    server = GivenPostgres(address=given.database_url, origin="the same")
    with fresh_database(server, "bench") as database_url:
        migrate.upgrade(database_url)
        yield replace(given, database_url=database_url)
