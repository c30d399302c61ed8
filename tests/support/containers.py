"""The same servers as containers, where a Docker engine answers."""

import os
import socket
import time
import warnings
from functools import cache
from typing import Any, Self
from urllib.parse import quote, urlsplit

from outbox.errors import BrokerUnavailable, StoreUnavailable
from outbox_admin.embedded import free_port
from tests.support.management import Management

POSTGRES_IMAGE = "postgres:17"
RABBIT_IMAGE = "rabbitmq:4.1-management"
_PASSWORD = "fairpost"
_NO_ALARM = "0.6"
_ALARM = "0.000001"


@cache
def engine_answers() -> bool:
    """Whether a Docker engine answers; asked once.

    Asked by hand: the client library leaves its socket open when nobody answers.
    """
    address = urlsplit(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock")
    try:
        with _connected(address.scheme, path=address.path, host=address.hostname, port=address.port) as link:
            link.settimeout(5.0)
            link.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return b" 200 " in link.recv(64)
    except OSError:
        return False


def _connected(scheme: str, *, path: str, host: str | None, port: int | None) -> socket.socket:
    if scheme != "unix":
        return socket.create_connection((host or "127.0.0.1", port or 2375), timeout=5.0)
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(path)
    except OSError:
        link.close()
        raise
    return link


class PostgresContainer:
    """A PostgreSQL container that tests share."""

    origin = f"container {POSTGRES_IMAGE}"

    def __init__(self, container: Any, port: int) -> None:
        self._container = container
        self._port = port

    def dsn(self, database: str = "postgres") -> str:
        """A superuser's URL for *database*."""
        return f"postgresql://postgres:{_PASSWORD}@127.0.0.1:{self._port}/{quote(database, safe='')}"

    def close(self) -> None:
        """Remove the container."""
        self._container.stop()


class RabbitContainer:
    """A RabbitMQ container; ``kill``, ``start`` and the rest work as those of a private node."""

    origin = f"container {RABBIT_IMAGE}"

    def __init__(self, container: Any, port: int, management: Management) -> None:
        self._container = container
        self._port = port
        self.management = management

    @classmethod
    def started(cls) -> Self:
        """A running broker.

        Raises:
            BrokerUnavailable: it was not ready in time.
        """
        port, management_port = free_port(), free_port()
        container = _run(RABBIT_IMAGE, ports={5672: port, 15672: management_port}, variables={}, command="")
        management = Management(url=f"http://127.0.0.1:{management_port}", user="guest", password="guest")
        node = cls(container, port, management)
        node._await_ready()
        return node

    def url(self, vhost: str = "/") -> str:
        """An AMQP URL for *vhost*."""
        return f"amqp://guest:guest@127.0.0.1:{self._port}/{quote(vhost, safe='')}"

    def start(self) -> None:
        """Start it again after ``stop`` or ``kill``, on the same port with the same data."""
        self._container.get_wrapped_container().start()
        self._await_ready()

    def stop(self) -> None:
        """Shut it down in good order."""
        self._container.get_wrapped_container().stop(timeout=30)

    def kill(self) -> None:
        """Kill it at once, unless it is stopped already."""
        wrapped = self._container.get_wrapped_container()
        wrapped.reload()
        if wrapped.status == "running":
            wrapped.kill()

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Remove the container."""
        self._container.stop()

    def ctl(self, *arguments: str) -> str:
        """What ``rabbitmqctl`` with *arguments* prints."""
        code, output = self._container.get_wrapped_container().exec_run(["rabbitmqctl", "--quiet", *arguments])
        assert code == 0, f"rabbitmqctl {' '.join(arguments)}: {output.decode(errors='replace')}"
        return str(output.decode())

    def block(self) -> None:
        """Raise the memory alarm: publishers are blocked until ``unblock``."""
        self.ctl("set_vm_memory_high_watermark", _ALARM)

    def unblock(self) -> None:
        """Clear what ``block`` raised."""
        self.ctl("set_vm_memory_high_watermark", _NO_ALARM)

    def close_connections(self, reason: str = "closed by a test") -> None:
        """Have the broker close every client's connection."""
        self.ctl("close_all_connections", "--global", reason)

    def _await_ready(self, *, within_s: float = 120.0) -> None:
        until = time.monotonic() + within_s
        while not self.management.answers():
            if time.monotonic() > until:
                raise BrokerUnavailable(f"{self.origin} did not start within {within_s:g} s")
            time.sleep(0.2)


def start_postgres(*, within_s: float = 120.0) -> PostgresContainer:
    """A running PostgreSQL container.

    Raises:
        StoreUnavailable: it was not ready in time.
    """
    import psycopg  # noqa: PLC0415 (only where a container is used)

    port = free_port()
    command = "postgres -c max_prepared_transactions=50 -c max_connections=200 -c fsync=off"
    variables = {"POSTGRES_PASSWORD": _PASSWORD}
    started = PostgresContainer(_run(POSTGRES_IMAGE, ports={5432: port}, variables=variables, command=command), port)
    until = time.monotonic() + within_s
    while True:
        try:
            psycopg.connect(started.dsn(), connect_timeout=5).close()
            return started
        except psycopg.OperationalError as error:
            if time.monotonic() > until:
                raise StoreUnavailable(f"{started.origin} did not start within {within_s:g} s: {error}") from error
        time.sleep(0.2)


def _run(image: str, *, ports: dict[int, int], variables: dict[str, str], command: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415 (only where a container is used)

        container = DockerContainer(image)
        for inside, outside in ports.items():
            # A port of our choice, so that it is the same one after a restart.
            container = container.with_bind_ports(inside, outside)
        for name, value in variables.items():
            container = container.with_env(name, value)
        if command:
            container = container.with_command(command)
        return container.start()
