"""The pipeline as it runs in production: the two commands as processes."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from outbox.errors import TransientError
from outbox_admin.demo import suppressed
from outbox_admin.leash import Leashed

_STOP_S: Final = 15.0
_HANDLERS: Final = "outbox_admin.demo.app:consumer"
# Short, so that a killed process's work is taken over while one watches.
_LEASE_S: Final = "3"


class Processes:
    """``outbox-relay`` and ``outbox-consumer``; a crash is SIGKILL."""

    def __init__(self, *, database_url: str, rabbitmq_url: str | None, directory: Path) -> None:
        """Prepare; *directory* takes their logs. Without *rabbitmq_url* the queues are in the database too."""
        broker = {"OUTBOX_BROKER": "postgres"} if rabbitmq_url is None else {"OUTBOX_RABBITMQ_URL": rabbitmq_url}
        self._directory = directory
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")},
            # What an app's own files say is not meant for the demo.
            "OUTBOX_ENV_FILE": os.devnull,
            "OUTBOX_CONFIG": os.devnull,
            "OUTBOX_DATABASE_URL": database_url,
            **broker,
            "OUTBOX_LOG_FORMAT": "json",
            "OUTBOX_RELAY_LEASE_S": _LEASE_S,
            "OUTBOX_RELAY_HEALTH_PORT": "0",
            "OUTBOX_CONSUMER_LEASE_S": _LEASE_S,
            "OUTBOX_CONSUMER_HEALTH_PORT": "0",
        }
        self._relay: Leashed | None = None
        self._consumer: Leashed | None = None

    async def start(self) -> None:
        """Start both."""
        self._relay = self._run("outbox-relay", "run")
        self._consumer = self._run("outbox-consumer", "run", _HANDLERS)

    async def kill_relay(self) -> None:
        """Kill the relay, and start another."""
        if self._relay is not None:
            self._relay.kill()
        self._relay = self._run("outbox-relay", "run")

    async def kill_consumer(self) -> None:
        """Kill the consumer, and start another."""
        if self._consumer is not None:
            self._consumer.kill()
        self._consumer = self._run("outbox-consumer", "run", _HANDLERS)

    async def stop(self) -> None:
        """End both in good order."""
        running = [process for process in (self._relay, self._consumer) if process is not None]
        self._relay = self._consumer = None
        for process in running:
            await asyncio.to_thread(process.end, signal.SIGTERM, within_s=_STOP_S)

    def check(self) -> None:
        """Raise TransientError if one of them has ended by itself."""
        for name, process in (("outbox-relay", self._relay), ("outbox-consumer", self._consumer)):
            if process is not None and not process.is_running():
                raise TransientError(f"demo: want {name} to run, got exit code {process.exit_code}: {process.tail(1)}")

    def suppressed(self) -> Mapping[str, int]:
        """Per tenant, how many deliveries the ledger recognised as done before."""
        return suppressed.count(self._directory / "outbox-consumer.log")

    def _run(self, name: str, *arguments: str) -> Leashed:
        command = [str(Path(sys.executable).with_name(name)), *arguments]
        return Leashed.start(command, log=self._directory / f"{name}.log", environment=self._environment)
