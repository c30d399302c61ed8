"""Which servers the tests run on: an address from the environment, else a container, else a private node.

Every answer is written down, the missing ones too, and told at the end of the session.
"""

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg

from outbox.errors import OutboxError
from outbox_admin.embedded import Binaries, PostgresNode, binaries_in, find_binaries
from tests.support import containers
from tests.support.management import Management
from tests.support.rabbit import PROGRAMS_VARIABLE, RabbitNode, find_programs

POSTGRES_VARIABLES = ("TEST_DATABASE_URL", "DATABASE_URL")
RABBIT_VARIABLES = ("TEST_RABBITMQ_URL", "RABBITMQ_URL")
MANAGEMENT_VARIABLE = "TEST_RABBITMQ_MANAGEMENT_URL"
POSTGRES_BINARIES_VARIABLE = "TEST_POSTGRES_BIN"
ADD_RABBIT = "apt-get install rabbitmq-server (or set RABBITMQ_URL, or start Docker)"
ADD_DUMP = "apt-get install postgresql-client, of the server's version, where its binaries are"
ADD_POSTGRES = "pip install 'fairpost[demo]' (or set DATABASE_URL, or start Docker)"


class Missing(OutboxError):
    """A server that tests need is not there; the message says why and what adds it."""


class Postgres(Protocol):
    """A PostgreSQL server that tests share."""

    @property
    def origin(self) -> str:
        """Where it came from, for people."""

    def dsn(self, database: str = "postgres") -> str:
        """A superuser's URL for *database*."""

    def close(self) -> None:
        """Let go of it, and end it if it is ours."""


class Rabbit(Protocol):
    """A RabbitMQ broker that tests share."""

    @property
    def origin(self) -> str:
        """Where it came from, for people."""

    @property
    def management(self) -> Management:
        """Its HTTP API."""

    def url(self, vhost: str = "/") -> str:
        """An AMQP URL for *vhost*."""

    def close(self) -> None:
        """Let go of it, and end it if it is ours."""


@dataclass(slots=True)
class Report:
    """What ran on what, and what did not run."""

    servers: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenPostgres:
    """A server whose address was given."""

    address: str
    origin: str

    def dsn(self, database: str = "postgres") -> str:
        """A URL for *database* with the login and the options that were given."""
        return urlunsplit(urlsplit(self.address)._replace(path="/" + quote(database, safe="")))

    def close(self) -> None:
        """Nothing: it is somebody else's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivatePostgres:
    """A private node."""

    node: PostgresNode

    @property
    def origin(self) -> str:
        """Where its binaries came from."""
        return f"private node, {self.node.binaries.origin}"

    def dsn(self, database: str = "postgres") -> str:
        """A superuser's URL for *database*."""
        return self.node.dsn(database)

    def close(self) -> None:
        """End the node."""
        self.node.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRabbit:
    """A broker whose address was given."""

    address: str
    origin: str
    management: Management

    def url(self, vhost: str = "/") -> str:
        """An AMQP URL for *vhost* with the login that was given."""
        return urlunsplit(urlsplit(self.address)._replace(path="/" + quote(vhost, safe="")))

    def close(self) -> None:
        """Nothing: it is somebody else's."""


def find_postgres(report: Report, *, environment: Mapping[str, str]) -> Postgres:
    """The server that tests share, running.

    Raises:
        Missing: there is none to be had.
    """
    name, address = _given(environment, POSTGRES_VARIABLES)
    try:
        found: Postgres
        if address:
            found = GivenPostgres(address=_plain(address), origin=f"given by {name}")
        elif not environment.get(POSTGRES_BINARIES_VARIABLE) and containers.engine_answers():
            found = containers.start_postgres()
        else:
            found = PrivatePostgres(node=start_private_postgres())
        report.servers["PostgreSQL"] = f"{_version(found)} ({found.origin})"
    except (OutboxError, psycopg.Error) as error:
        raise _missing(report, "PostgreSQL", error, name=name, adds=ADD_POSTGRES) from error
    return found


def find_rabbit(report: Report, *, environment: Mapping[str, str]) -> Rabbit:
    """The broker that tests share, running.

    Raises:
        Missing: there is none to be had.
    """
    name, address = _given(environment, RABBIT_VARIABLES)
    try:
        found: Rabbit
        if address:
            found = _given_rabbit(address, origin=f"given by {name}", environment=environment)
        elif not environment.get(PROGRAMS_VARIABLE) and containers.engine_answers():
            found = containers.RabbitContainer.started()
        else:
            found = start_private_rabbit()
        report.servers["RabbitMQ"] = f"{found.management.version()} ({found.origin})"
    except (OutboxError, OSError) as error:
        raise _missing(report, "RabbitMQ", error, name=name, adds=ADD_RABBIT) from error
    return found


def _missing(report: Report, server: str, error: Exception, *, name: str, adds: str) -> Missing:
    """The error to raise; it goes into the report with what the person at the keyboard can do."""
    why = " ".join(str(error).split())
    if name:
        # A given address is never replaced: whoever gave it wants to know about that server and no other.
        why, adds = f"the one given by {name} cannot be used: {why}", f"correct {name}, or unset it"
    report.missing[server] = f"{why}\n    to add it: {adds}"
    return Missing(f"{server}: {why}")


def _version(server: Postgres) -> str:
    with psycopg.connect(server.dsn(), connect_timeout=10) as connection:
        settings = "current_setting('server_version'), current_setting('max_prepared_transactions')::int"
        row = connection.execute(f"select {settings}").fetchone()
    assert row is not None
    version, prepared = row
    if prepared == 0:
        raise Missing("tests of two-phase commit want max_prepared_transactions of 10 or more, got 0")
    return str(version)


def start_private_postgres() -> PostgresNode:
    """A running node of the caller's own; it may be killed, and is to be closed."""
    node = PostgresNode(binaries=postgres_binaries(), durable=False)
    node.start()
    return node


def postgres_binaries() -> Binaries:
    """What private nodes run: the kind or the directory that was asked for, else the machine's own, else the wheel's.

    Raises:
        StoreUnavailable: it is not there.
    """
    asked = os.environ.get(POSTGRES_BINARIES_VARIABLE)
    if not asked or asked == "wheel":
        return find_binaries(prefer="wheel" if asked else "local")
    return binaries_in(Path(asked))


def start_private_rabbit() -> RabbitNode:
    """A running node of the caller's own; it may be killed, and is to be closed.

    Raises:
        Missing: RabbitMQ is not installed.
    """
    programs = find_programs()
    if programs is None:
        raise Missing("no address given, no Docker engine answers, and rabbitmq-server is not installed")
    if shutil.which("erl") is None and not os.environ.get(PROGRAMS_VARIABLE):
        raise Missing("rabbitmq-server is installed, but Erlang (erl) is not on PATH")
    node = RabbitNode(programs=programs)
    try:
        node.start()
    except OutboxError:
        node.close()
        raise
    return node


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """PostgreSQL's own programs to save a database and to restore it."""

    directory: Path

    def restored(self, source: str, target: str) -> None:
        """Save the database at *source* and restore it into the empty one at *target*."""
        with tempfile.TemporaryDirectory(prefix="fairpost-dump-") as directory:
            archive = str(Path(directory) / "archive")
            for command in (
                ["pg_dump", "--format=custom", f"--file={archive}", f"--dbname={source}"],
                ["pg_restore", "--exit-on-error", "--no-owner", f"--dbname={target}", archive],
            ):
                path = str(self.directory / command[0])
                done = subprocess.run([path, *command[1:]], capture_output=True, text=True, check=False, timeout=120)
                assert done.returncode == 0, done.stderr


def find_dump(report: Report) -> Dump:
    """The programs that go with a private node.

    Raises:
        Missing: its binaries came without them.
    """
    what = "pg_dump and pg_restore"
    try:
        directory = postgres_binaries().directory
        if not all((directory / name).exists() for name in ("pg_dump", "pg_restore")):
            raise Missing(f"want them beside the server's binaries in {directory}, found none")
    except OutboxError as error:
        raise _missing(report, what, error, name="", adds=ADD_DUMP) from error
    report.servers[what] = f"in {directory}"
    return Dump(directory=directory)


def find_faulty_rabbit(report: Report) -> "RabbitNode | containers.RabbitContainer":
    """A broker of the caller's own that can be killed: a private node, else a container.

    Raises:
        Missing: there is none to be had.
    """
    what = "RabbitMQ, killed by tests"
    try:
        if find_programs() is None and containers.engine_answers():
            node: RabbitNode | containers.RabbitContainer = containers.RabbitContainer.started()
        else:
            node = start_private_rabbit()
    except OutboxError as error:
        raise _missing(report, what, error, name="", adds=ADD_RABBIT) from error
    report.servers[what] = f"{node.management.version()} ({node.origin})"
    return node


def fresh_name(what: str) -> str:
    """A name that nothing else on a shared server has."""
    return f"fairpost_test_{what}_{secrets.token_hex(5)}"


def _given(environment: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str]:
    return next(((name, environment[name]) for name in names if environment.get(name)), ("", ""))


def _plain(address: str) -> str:
    """The address without SQLAlchemy's driver name."""
    scheme, mark, rest = address.partition("://")
    return scheme.partition("+")[0] + mark + rest


def _given_rabbit(address: str, *, origin: str, environment: Mapping[str, str]) -> GivenRabbit:
    parts = urlsplit(address)
    host, user, password = parts.hostname or "127.0.0.1", parts.username or "guest", parts.password or "guest"
    with socket.create_connection((host, parts.port or 5672), timeout=10):
        pass
    url = environment.get(MANAGEMENT_VARIABLE) or f"http://{host}:15672"
    management = Management(url=url.rstrip("/"), user=user, password=password)
    if not management.answers():
        raise Missing(
            f"every test needs a vhost of its own, made by the broker's HTTP API, which does not answer at {url}: "
            f"run rabbitmq-plugins enable rabbitmq_management there, or set {MANAGEMENT_VARIABLE}"
        )
    return GivenRabbit(address=address, origin=origin, management=management)


def is_ci() -> bool:
    """Whether a missing server is a failure."""
    return os.environ.get("CI", "").lower() in {"1", "true", "yes"}
