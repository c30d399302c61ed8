"""Which servers the tests run on: an address from the environment, else a container, else a private node.

Every answer is written down, the missing ones too, and told at the end of the session.
"""

import os
import secrets
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg

from admin.embedded import PostgresNode, find_binaries
from outbox.errors import OutboxError, StoreUnavailable
from tests.support import containers
from tests.support.management import Management
from tests.support.rabbit import RabbitNode, find_programs

POSTGRES_VARIABLES = ("TEST_DATABASE_URL", "DATABASE_URL")
RABBIT_VARIABLES = ("TEST_RABBITMQ_URL", "RABBITMQ_URL")
MANAGEMENT_VARIABLE = "TEST_RABBITMQ_MANAGEMENT_URL"
ADD_RABBIT = "apt-get install rabbitmq-server (or set RABBITMQ_URL, or start Docker)"
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
        elif containers.engine_answers():
            found = containers.start_postgres()
        else:
            found = PrivatePostgres(node=start_private_postgres())
        with psycopg.connect(found.dsn(), connect_timeout=10) as connection:
            version = connection.execute("show server_version").fetchone()
    except (StoreUnavailable, psycopg.OperationalError) as error:
        report.missing["PostgreSQL"] = f"{str(error).strip()}\n    to add it: {ADD_POSTGRES}"
        raise Missing(f"PostgreSQL: {error}") from error
    report.servers["PostgreSQL"] = f"{'' if version is None else version[0]} ({found.origin})"
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
        elif containers.engine_answers():
            found = containers.RabbitContainer.started()
        else:
            found = start_private_rabbit()
        report.servers["RabbitMQ"] = f"{found.management.version()} ({found.origin})"
    except (OutboxError, OSError) as error:
        report.missing["RabbitMQ"] = f"{error}\n    to add it: {ADD_RABBIT}"
        raise Missing(f"RabbitMQ: {error}") from error
    return found


def start_private_postgres() -> PostgresNode:
    """A running node of the caller's own; it may be killed, and is to be closed."""
    node = PostgresNode(binaries=find_binaries(), durable=False)
    node.start()
    return node


def start_private_rabbit() -> RabbitNode:
    """A running node of the caller's own; it may be killed, and is to be closed.

    Raises:
        Missing: RabbitMQ is not installed.
    """
    programs = find_programs()
    if programs is None:
        raise Missing("no address given, no Docker engine answers, and rabbitmq-server is not installed")
    if shutil.which("erl") is None:
        raise Missing("rabbitmq-server is installed, but Erlang (erl) is not on PATH")
    node = RabbitNode(programs=programs)
    try:
        node.start()
    except OutboxError:
        node.close()
        raise
    return node


def start_faulty_rabbit() -> "RabbitNode | containers.RabbitContainer":
    """A broker of the caller's own that can be killed: a private node, else a container."""
    if find_programs() is None and containers.engine_answers():
        return containers.RabbitContainer.started()
    return start_private_rabbit()


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
