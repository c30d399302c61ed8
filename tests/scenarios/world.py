"""What a scenario runs in: a database, a broker, and our commands as processes that are watched from outside."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import aiormq
import psycopg
import sqlalchemy as sa

from outbox import topology
from outbox.event import Tier
from outbox.naming import Lane
from outbox.queues import standing
from outbox.queues.session import connect
from tests.support.processes import ConsoleProcess, Processes
from tests.support.wait import until

ROOT = Path(__file__).parents[2]
BANK = "tests.scenarios.bank:consumer"
# The shortest that settings allow: a killed process's work is to be taken over while the test waits.
LEASE_S = 3.0


class Service:
    """A running ``outbox-relay`` or ``outbox-consumer``."""

    def __init__(self, process: ConsoleProcess) -> None:
        self.process = process
        self._port: int | None = None

    async def until_ready(self, *, deadline_s: float = 60.0) -> None:
        """Wait until ``/ready`` says yes."""

        async def is_ready() -> bool:
            assert self.process.is_running(), f"{self.process.name} ended:\n{self.process.output[-3000:]}"
            return await self.is_ready()

        await until(is_ready, deadline_s=deadline_s, every_s=0.05, what=f"{self.process.name} to be ready")

    async def until_unready(self, *, deadline_s: float = 30.0) -> None:
        """Wait until ``/ready`` says no."""

        async def is_unready() -> bool:
            return not await self.is_ready()

        await until(is_unready, deadline_s=deadline_s, every_s=0.05, what=f"{self.process.name} to be unready")

    async def is_ready(self) -> bool:
        """Whether ``/ready`` says yes now; it does not before the port is known."""
        status, _ = await self.ask("/ready")
        return status == 200

    async def metric(self, name: str) -> float:
        """A metric's value, its labels being part of *name*; 0 where there is none yet."""
        _, text = await self.ask("/metrics")
        lines = (line.rpartition(" ") for line in (text or "").splitlines())
        return next((float(value) for found, _, value in lines if found == name), 0.0)

    async def ask(self, path: str) -> tuple[int, str]:
        """The answer's status, 0 where nobody answers, and what it says."""
        port = self._port = self._port or self._find_port()
        if port is None:
            return 0, ""
        return await asyncio.to_thread(_get, f"http://127.0.0.1:{port}{path}")

    def said(self, event: str, **fields: object) -> list[dict[str, object]]:
        """The records with this message and these values."""
        wanted = {"event": event, **fields}
        return [record for record in self.process.records() if wanted.items() <= record.items()]

    async def end(self, *, deadline_s: float = 40.0) -> int:
        """Ask it to end as a supervisor does; its exit code."""
        self.process.terminate()
        return await self.process.ended(deadline_s=deadline_s)

    def _find_port(self) -> int | None:
        for line in self.process.output.splitlines():
            if '"health_port"' in line:
                port: int = json.loads(line)["health_port"]
                return port
        return None


class World:
    """A migrated database, and a vhost, or none where the queues are in the database too.

    What was started here is killed at the end by ``processes``.
    """

    def __init__(self, processes: Processes, *, database_url: str, rabbitmq_url: str) -> None:
        self._processes = processes
        self.database_url = database_url
        self.rabbitmq_url = rabbitmq_url
        self.services: list[Service] = []

    def engine(self) -> sa.Engine:
        """An app's engine; the caller disposes of it."""
        return sa.create_engine(sa.make_url(self.database_url).set(drivername="postgresql+psycopg"), pool_size=10)

    def settings(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """What every process here is told, and *more*."""
        broker = {"RABBITMQ_URL": self.rabbitmq_url} if self.rabbitmq_url else {"BROKER": "postgres"}
        return {
            "OUTBOX_DATABASE_URL": self.database_url,
            **{f"OUTBOX_{name}": value for name, value in broker.items()},
            "OUTBOX_LOG_FORMAT": "json",
            "OUTBOX_RELAY_LEASE_S": str(LEASE_S),
            "OUTBOX_RELAY_HEALTH_PORT": "0",
            "OUTBOX_CONSUMER_LEASE_S": str(LEASE_S),
            "OUTBOX_CONSUMER_HEALTH_PORT": "0",
            **(more or {}),
        }

    def relay(self, **settings: str) -> Service:
        """Start ``outbox-relay run``; ``window="10"`` is ``OUTBOX_RELAY_WINDOW``."""
        return self._start("outbox-relay", "run", prefix="OUTBOX_RELAY_", settings=settings, cwd=None)

    def consumer(self, app: str = BANK, *, cwd: Path = ROOT, **settings: str) -> Service:
        """Start ``outbox-consumer run`` with *app*, found in *cwd*."""
        return self._start("outbox-consumer", "run", app, prefix="OUTBOX_CONSUMER_", settings=settings, cwd=cwd)

    async def command(
        self, name: str, *arguments: str, cwd: Path = ROOT, settings: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Run a command to its end; its exit code and all it printed."""
        process = self._processes.start(name, *arguments, settings=self.settings(settings), cwd=cwd)
        code = await process.ended(deadline_s=60.0)
        return code, process.output

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """What *query* returns."""
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            return connection.execute(query.encode(), parameters or None).fetchall()

    def value(self, query: str, *parameters: object) -> Any:
        """The one value that *query* returns."""
        return self.rows(query, *parameters)[0][0]

    def execute(self, statement: str) -> None:
        """Run *statement*."""
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            connection.execute(statement.encode())

    async def until_value(
        self, query: str, wanted: object, *, deadline_s: float = 60.0, every_s: float = 0.1, what: str = ""
    ) -> None:
        """Wait until *query* returns *wanted*, while all services run."""
        found: object = None

        def is_there() -> bool:
            nonlocal found
            found = self.value(query)
            return bool(found == wanted)

        try:
            await until(is_there, deadline_s=deadline_s, every_s=every_s, what=what or query)
        except AssertionError as error:
            said = "\n".join(service.process.output[-2000:] for service in self.services)
            raise AssertionError(f"{error}; want {wanted!r}, got {found!r}\n{said}") from None

    async def until_idle(self, *consumers: Service) -> None:
        """Wait until nothing is left to do: queues, work rows and the *consumers*' hands are empty.

        Once everything was handled, what came twice may still be under way.
        """

        async def is_idle() -> bool:
            if self.value("SELECT count(*) FROM consumer.work") or any((await self.queues()).values()):
                return False
            return not any([await consumer.metric("outbox_consumer_in_hand") for consumer in consumers])

        await until(is_idle, deadline_s=60.0, every_s=0.1, what="queues, work rows and hands to be empty")

    async def queues(self) -> dict[str, int]:
        """How many messages wait in each queue of ours that exists."""
        names = [
            Lane(group=group, tier=Tier(tier), tenant=tenant).queue
            for group, tier, tenant in self.rows("SELECT group_name, tier, tenant FROM outbox.lane")
        ]
        for (group,) in self.rows("SELECT group_name FROM outbox.consumer_group"):
            names += [topology.directory_queue(group), topology.refused_queue(group)]
        if not self.rabbitmq_url:
            async with await connect(self.database_url, name="world", within_s=10.0) as queues:
                return {name: one.ready + one.held for name, one in (await standing.counts(queues, names)).items()}
        found = {}
        async with aiormq.connect(self.rabbitmq_url) as connection:
            channel = await connection.channel()
            for name in names:
                declared = await channel.queue_declare(name, passive=True)
                found[name] = declared.message_count or 0
        return found

    @property
    def vhost(self) -> str:
        """The vhost's name."""
        return unquote(urlsplit(self.rabbitmq_url).path.removeprefix("/"))

    def _start(self, name: str, *arguments: str, prefix: str, settings: Mapping[str, str], cwd: Path | None) -> Service:
        own = {prefix + key.upper(): value for key, value in settings.items()}
        service = Service(self._processes.start(name, *arguments, settings=self.settings(own), cwd=cwd))
        self.services.append(service)
        return service


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""
