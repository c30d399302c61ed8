"""Our console processes as the real thing: started, watched by their log, stopped, killed, always ended."""

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from outbox_admin.leash import Leashed, descendants
from tests.support.wait import until

# What a process may see of our environment; its settings are those of the test and no others.
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH")


class ConsoleProcess:
    """One running command of ours; its output, stdout and stderr together, is kept in a file."""

    def __init__(self, child: Leashed, name: str, directory: Path) -> None:
        self._child = child
        self._directory = directory
        self.name = name

    @classmethod
    def start(
        cls, name: str, *arguments: str, settings: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Self:
        """Start the console script *name* with *settings* as its environment.

        Args:
            name: ``outbox``, ``outbox-relay`` or ``outbox-consumer``, from beside this Python.
            cwd: where it runs, so that an app's module there can be imported; else the root of the file system.
        """
        directory = Path(tempfile.mkdtemp(prefix=f"fairpost-{name}-"))
        environment = {key: os.environ[key] for key in _KEPT if key in os.environ}
        environment |= {"PYTHONUNBUFFERED": "1", **(settings or {})}
        command = [str(Path(sys.executable).with_name(name)), *arguments]
        if cwd is not None:
            command = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', str(cwd), *command]
        child = Leashed.start(command, log=directory / "output", environment=environment, remove_at_death=directory)
        return cls(child, name, directory)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    @property
    def output(self) -> str:
        """All it has printed so far."""
        return self._child.log.read_text(errors="replace")

    def records(self) -> list[dict[str, object]]:
        """Its log so far: the lines that are JSON objects."""
        found = []
        for line in self.output.splitlines():
            if line.startswith("{") and line.endswith("}"):
                found.append(json.loads(line))
        return found

    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._child.is_running()

    async def line(self, text: str, *, deadline_s: float = 40.0, times: int = 1) -> None:
        """Wait until it has printed *text* *times* times.

        Raises:
            AssertionError: it has not within *deadline_s*, or ended without; the message has its last lines.
        """

        def seen() -> bool:
            printed = self.output.count(text) >= times
            assert printed or self.is_running(), f"{self.name} ended before it said {text!r}:\n{self._child.tail(30)}"
            return printed

        try:
            await until(seen, deadline_s=deadline_s, what=f"{self.name} to say {text!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._child.tail(30)}") from None

    async def ended(self, *, deadline_s: float = 40.0) -> int:
        """Wait for its end; its exit code, or minus the signal that ended it."""
        await until(lambda: not self.is_running(), deadline_s=deadline_s, what=f"{self.name} to end")
        return self._child.exit_code

    def terminate(self) -> None:
        """Send SIGTERM: drain."""
        self._child.send(signal.SIGTERM)

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does."""
        self._child.send(signal.SIGINT)

    def freeze(self) -> None:
        """Send SIGSTOP: it holds all it has and does nothing, until ``thaw``."""
        self._child.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Send SIGCONT."""
        self._child.send(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL to it and all its children; they are gone on return."""
        self._child.kill()

    def close(self) -> None:
        """End it if it still runs, and remove its output."""
        self._child.kill()
        shutil.rmtree(self._directory, ignore_errors=True)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """The process *pid* and all below it are stopped: sockets stay open, and nobody answers."""
    group = [pid, *descendants(pid)]
    for one in group:
        os.kill(one, signal.SIGSTOP)
    try:
        yield
    finally:
        for one in group:
            os.kill(one, signal.SIGCONT)


class Processes:
    """The processes of one test: what is still running at the end is killed."""

    def __init__(self) -> None:
        self._started: list[ConsoleProcess] = []

    def start(
        self, name: str, *arguments: str, settings: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> ConsoleProcess:
        """As ``ConsoleProcess.start``."""
        process = ConsoleProcess.start(name, *arguments, settings=settings, cwd=cwd)
        self._started.append(process)
        return process

    def close(self) -> None:
        """End every one of them."""
        for process in self._started:
            process.close()
        self._started.clear()
