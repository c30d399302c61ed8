"""A world for each scenario, on the servers that tests share, or on ones that a scenario may restart."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from outbox.shell.setting_types import BrokerName
from outbox_admin import migrate
from outbox_admin.embedded import PostgresNode
from tests.scenarios import bank, dangerous
from tests.scenarios.world import ROOT, Service, World
from tests.support.containers import RabbitContainer
from tests.support.databases import fresh_database
from tests.support.engine import Rig
from tests.support.processes import Processes
from tests.support.rabbit import RabbitNode
from tests.support.rabbit_queues import rabbit_rig
from tests.support.services import PrivatePostgres, fresh_name

Start = Callable[..., Service]
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.scenario)


@pytest.fixture
def broker() -> BrokerName:
    """Where the world's queues are; a test that says otherwise parametrizes it."""
    return "rabbitmq"


@pytest.fixture
def world(request: pytest.FixtureRequest, processes: Processes, migrated_database: str, broker: BrokerName) -> World:
    """A world with the bank's tables."""
    rabbitmq_url = request.getfixturevalue("vhost") if broker == "rabbitmq" else ""
    return _with_bank(World(processes, database_url=migrated_database, rabbitmq_url=rabbitmq_url))


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


@pytest.fixture
async def rig(migrated_database: str, vhost: str) -> AsyncIterator[Rig]:
    """A database and a vhost for the dangerous app, whose events the test publishes itself."""
    async with rabbit_rig(migrated_database, vhost, "quorum") as rig:
        yield rig


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """What the dangerous app waits for, where it is told to."""
    return tmp_path / "go"


@pytest.fixture
def start(rig: Rig, processes: Processes, vhost: str, go: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts the dangerous app as so many processes."""
    # One suspect at a time per host: other tests on this host are not this one's business.
    monkeypatch.setenv("TMPDIR", str(go.parent))

    def start(count: int, *, app: str = dangerous.APP, **settings: str) -> Service:
        own = {f"OUTBOX_CONSUMER_{name.upper()}": value for name, value in settings.items()}
        environment = {
            "OUTBOX_DATABASE_URL": rig.database_url,
            "OUTBOX_RABBITMQ_URL": vhost,
            "OUTBOX_LOG_FORMAT": "json",
            "OUTBOX_CONSUMER_LEASE_S": "3",
            "OUTBOX_CONSUMER_HEALTH_PORT": "0",
            "OUTBOX_CONSUMER_DRAIN_S": "10",
            dangerous.GO: str(go),
            **own,
        }
        service = Service(
            processes.start("outbox-consumer", "run", app, "--processes", str(count), settings=environment, cwd=ROOT)
        )
        started.append(service)
        return service

    started: list[Service] = []
    yield start
    for service in started:
        print(service.process.output)  # shown where the test failed


def _with_bank(world: World) -> World:
    engine = world.engine()
    bank.metadata.create_all(engine)
    engine.dispose()
    return world
