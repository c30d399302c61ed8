"""A world for each scenario, on the servers that tests share, or on ones that a scenario may restart."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from admin import migrate
from admin.embedded import PostgresNode
from tests.scenarios import bank
from tests.scenarios.world import World
from tests.support.containers import RabbitContainer
from tests.support.databases import fresh_database
from tests.support.processes import Processes
from tests.support.rabbit import RabbitNode
from tests.support.services import PrivatePostgres, fresh_name

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.scenario)


@pytest.fixture
def world(processes: Processes, migrated_database: str, vhost: str) -> World:
    """A world with the bank's tables."""
    return _with_bank(World(processes, database_url=migrated_database, rabbitmq_url=vhost))


@pytest.fixture
def frail_world(
    processes: Processes, faulty_postgres: PostgresNode, faulty_rabbit: RabbitNode | RabbitContainer
) -> Iterator[World]:
    """A world with the bank's tables, on servers that the test may restart."""
    name = fresh_name("frail")
    faulty_rabbit.management.add_vhost(name)
    with fresh_database(PrivatePostgres(node=faulty_postgres), "frail") as database_url:
        migrate.upgrade(database_url)
        yield _with_bank(World(processes, database_url=database_url, rabbitmq_url=faulty_rabbit.url(name)))
        faulty_postgres.start()


def _with_bank(world: World) -> World:
    engine = world.engine()
    bank.metadata.create_all(engine)
    engine.dispose()
    return world
