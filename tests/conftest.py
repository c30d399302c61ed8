"""Fixtures that give tests real servers, and the last lines that say which ones they were."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn, TypeVar

import psycopg
import pytest
from hypothesis import HealthCheck, settings

from outbox.errors import OutboxError
from outbox_admin.embedded import PostgresNode
from tests.support.containers import RabbitContainer
from tests.support.databases import fresh_database
from tests.support.installs import Release, make_release
from tests.support.processes import Processes
from tests.support.rabbit import RabbitNode
from tests.support.services import (
    Dump,
    GivenRabbit,
    Postgres,
    Rabbit,
    Report,
    find_dump,
    find_faulty_rabbit,
    find_postgres,
    find_rabbit,
    fresh_name,
    is_ci,
    start_private_postgres,
)

T = TypeVar("T")
_REPORT = pytest.StashKey[Report]()
# How long examples take to make says how busy the machine is, not what is right.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_REPORT] = Report()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # What a shell starts in the background ignores Ctrl-C, and all that tests interrupt would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.pluginmanager.has_plugin("xdist") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Workers())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    report = config.stash[_REPORT]
    terminalreporter.section("servers")
    for name, what in report.servers.items():
        terminalreporter.line(f"{name}: {what}")
    for name, why in report.missing.items():
        terminalreporter.line(f"{name} is missing, what needs it did not run: {why}")
    if not report.servers and not report.missing:
        terminalreporter.line("the tests that ran needed none")
    skipped = len(terminalreporter.stats.get("skipped", []))
    terminalreporter.line(f"{skipped} skipped, listed above with their reasons" if skipped else "nothing was skipped")


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:  # one of several processes: the one that prints has to be told
        report = session.config.stash[_REPORT]
        output["servers"], output["missing"] = report.servers, report.missing


class _Workers:
    """Hears what each of several test processes ran on."""

    def pytest_testnodedown(self, node: object) -> None:
        """One of them has ended; one that crashed has nothing to tell."""
        output = getattr(node, "workeroutput", {})
        report = getattr(node, "config").stash[_REPORT]  # noqa: B009 - pytest-xdist has no types
        report.servers.update(output.get("servers", {}))
        report.missing.update(output.get("missing", {}))


def _started(start: Callable[[], T]) -> T:
    try:
        return start()
    except OutboxError as error:
        why = str(error)
    return _give_up(why)


def _give_up(why: str) -> NoReturn:
    if is_ci():
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Report:
    """What the session's last lines will say."""
    return pytestconfig.stash[_REPORT]


# ------------------------------------------------------------------ PostgreSQL


@pytest.fixture(scope="session")
def postgres_node(report: Report) -> Iterator[Postgres]:
    """The PostgreSQL server that tests share; never stop it."""
    node = _started(lambda: find_postgres(report, environment=os.environ))
    yield node
    node.close()


@pytest.fixture
def database(postgres_node: Postgres) -> Iterator[str]:
    """The URL of a fresh, empty database of the test's own."""
    with fresh_database(postgres_node, "empty", template="template0") as dsn:
        yield dsn


@pytest.fixture
def migrated_database(postgres_node: Postgres, migrated_template: str) -> Iterator[str]:
    """The URL of a fresh database of the test's own with both migration chains applied."""
    with fresh_database(postgres_node, "migrated", template=migrated_template) as dsn:
        with psycopg.connect(dsn) as connection:
            # A copy is another database than its positions are of, and a relay would say so.
            connection.execute(
                "update outbox.origin set database_oid = here.database_oid from outbox.current_origin() here"
            )
        yield dsn


@pytest.fixture(scope="session")
def migrated_template(postgres_node: Postgres) -> Iterator[str]:
    """The name of a database with both migration chains applied; it is only ever copied."""
    from outbox_admin import migrate  # noqa: PLC0415 (tests that need no database run without it)

    with fresh_database(postgres_node, "template", template="template0") as dsn:
        migrate.upgrade(dsn)
        yield dsn.rpartition("/")[2].partition("?")[0]


@pytest.fixture(scope="module")
def _faulty_postgres_node(report: Report) -> Iterator[PostgresNode]:
    node = _started(start_private_postgres)
    report.servers["PostgreSQL, killed by tests"] = f"{node.version} (private node, {node.binaries.origin})"
    yield node
    node.close()


@pytest.fixture
def faulty_postgres(_faulty_postgres_node: PostgresNode) -> PostgresNode:
    """A running PostgreSQL node, shared with this module's tests alone, that they may stop, kill and restart."""
    _faulty_postgres_node.start()
    return _faulty_postgres_node


@pytest.fixture(scope="session")
def dump(report: Report) -> Dump:
    """Programs that save and restore databases of private nodes."""
    return _started(lambda: find_dump(report))


@pytest.fixture(scope="session")
def _queues_database(postgres_node: Postgres) -> Iterator[str]:
    from outbox_admin import migrate  # noqa: PLC0415 (tests that need no database run without it)

    with fresh_database(postgres_node, "queues", template="template0") as dsn:
        migrate.upgrade(dsn, chains=("broker",))
        yield dsn


@pytest.fixture
def queues_database(_queues_database: str) -> str:
    """The URL of a database with the broker's chain alone, and nothing in its tables: one for all, emptied for each."""
    with psycopg.connect(_queues_database, autocommit=True) as connection:
        connection.execute("truncate outbox_broker.queue, outbox_broker.message, outbox_broker.lease")
    return _queues_database


# ------------------------------------------------------------------ RabbitMQ


@pytest.fixture(scope="session")
def rabbit_node(report: Report) -> Iterator[Rabbit]:
    """The RabbitMQ broker that tests share; never stop or block it."""
    node = _started(lambda: find_rabbit(report, environment=os.environ))
    yield node
    node.close()


@pytest.fixture(scope="session")
def _vhost_remover(rabbit_node: Rabbit) -> Iterator[ThreadPoolExecutor]:
    # A vhost with quorum queues takes seconds to delete; no test waits for that, nor does a node that ends anyway.
    remover = ThreadPoolExecutor(max_workers=1, thread_name_prefix="vhost-remover")
    yield remover
    is_lasting = isinstance(rabbit_node, GivenRabbit)
    remover.shutdown(wait=True, cancel_futures=not is_lasting)


@pytest.fixture
def vhost(rabbit_node: Rabbit, _vhost_remover: ThreadPoolExecutor) -> Iterator[str]:
    """The AMQP URL of a fresh vhost of the test's own."""
    name = fresh_name("vhost")
    rabbit_node.management.add_vhost(name)
    yield rabbit_node.url(name)
    _vhost_remover.submit(rabbit_node.management.delete_vhost, name)


@pytest.fixture(scope="module")
def _faulty_rabbit_node(report: Report) -> Iterator[RabbitNode | RabbitContainer]:
    node = _started(lambda: find_faulty_rabbit(report))
    yield node
    node.close()


@pytest.fixture
def faulty_rabbit(_faulty_rabbit_node: RabbitNode | RabbitContainer) -> RabbitNode | RabbitContainer:
    """A running RabbitMQ broker, shared with this module's tests alone, that they may stop, kill, restart and block."""
    _faulty_rabbit_node.start()
    return _faulty_rabbit_node


# ------------------------------------------------------------------ what is shipped


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The wheels and the sdists of this tree."""
    return make_release(tmp_path_factory.mktemp("release"))


# ------------------------------------------------------------------ processes


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Starts our console processes; what still runs at the test's end is killed."""
    started = Processes()
    yield started
    started.close()
