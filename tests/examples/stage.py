"""An example, followed by its own README: what a test runs is what stands there."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.processes import ConsoleProcess, Processes
from tests.support.wait import until

EXAMPLES = Path(__file__).parents[2] / "examples"
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXPORT = re.compile(r"^export (\w+)=", re.MULTILINE)
_PORT = re.compile(r"\b800\d\b")
_SHELL_S = 40.0


class Stage:
    """The folder of one example, with servers in place of those that its README names.

    Ports of the README (8000 to 8009) are free ones here, by whatever command or address names them.
    """

    def __init__(self, name: str, *, settings: Mapping[str, str], more: Mapping[str, str]) -> None:
        """Take the README of *name*.

        Args:
            settings: a value for each variable that its section Settings exports, and for no other.
            more: what tests need besides.
        """
        self.folder = EXAMPLES / name
        text = (self.folder / "README.md").read_text()
        self._ports = {port: str(_free_port()) for port in sorted(set(_PORT.findall(text)))}
        self._sections = {part.partition("\n")[0]: part for part in self._local(text).split("\n## ")}
        exported = set(_EXPORT.findall(self._sections["Settings"]))
        assert exported == settings.keys(), f"want a value for each of {exported}, got {settings.keys()}"
        self.settings = {name: self._local(value) for name, value in settings.items()} | dict(more)
        self._processes = Processes()
        self.running: dict[str, ConsoleProcess] = {}

    def blocks(self, section: str) -> list[str]:
        """The shell blocks of one section, in order."""
        found = _BLOCK.findall(self._sections[section])
        assert found, f"{section}: want a block, got none"
        return found

    def url(self, port: int) -> str:
        """Where what the README has on *port* answers."""
        return f"http://127.0.0.1:{self._ports[str(port)]}"

    def shell(self, script: str, **more: str) -> str:
        """Run *script* as a person would, in the example's folder; what it printed. It must succeed."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        with subprocess.Popen(
            ["/bin/sh", "-euc", script],
            cwd=self.folder,
            env={"PATH": path, "HOME": os.environ.get("HOME", "/"), **self.settings, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        ) as child:
            try:
                printed, _ = child.communicate(timeout=_SHELL_S)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                raise
        assert child.returncode == 0, f"{script}\nended with {child.returncode}:\n{printed}"
        return printed

    def start(self, begins: str, *, cwd: Path | None = None, **more: str) -> ConsoleProcess:
        """Start that one line of the section Run that begins with these words; ``running`` has it by them."""
        lines = [line for block in self.blocks("Run") for line in block.splitlines()]
        (line,) = (line for line in lines if line.startswith(begins))
        self.running[begins] = self.command(line, cwd=cwd, **more)
        return self.running[begins]

    def command(self, line: str, *, cwd: Path | None = None, **more: str) -> ConsoleProcess:
        """Start *line* in the example's folder, or in *cwd*."""
        name, *arguments = shlex.split(line)
        return self._processes.start(name, *arguments, settings=self.settings | more, cwd=cwd or self.folder)

    def close(self) -> None:
        """End every process."""
        self._processes.close()

    def _local(self, text: str) -> str:
        return _PORT.sub(lambda found: self._ports.get(found[0], found[0]), text)


@contextmanager
def set_up(name: str, *, settings: Mapping[str, str], more: Mapping[str, str]) -> Iterator[Stage]:
    """The stage of *name*, with what its section Set up says done; its processes end with it."""
    stage = Stage(name, settings=settings, more=more)
    try:
        for block in stage.blocks("Set up"):
            stage.shell(block)
        yield stage
    finally:
        stage.close()


async def until_answers(url: str, *, of: ConsoleProcess) -> None:
    """Wait until *url* answers with 200."""

    async def answers() -> bool:
        assert of.is_running(), of.output
        try:
            return (await client.get(url)).is_success
        except httpx.TransportError:
            return False

    async with httpx.AsyncClient(timeout=5) as client:
        await until(answers, deadline_s=30.0, every_s=0.05, what=f"{url} to answer")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
