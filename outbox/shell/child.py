"""Processes of our own, started by exec and never by fork, that end with whoever started them.

Parent and child hold the two ends of a socket. It carries messages both ways, and its end is how each learns that the
other is gone, however it went: the kernel closes it, and nobody has to ask whether a pid still lives.
"""

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeAlias

Json: TypeAlias = "dict[str, object]"

_HEAD: Final = struct.Struct("!II")
#: What may wait to be written; a report more would tell nothing new to a parent that stands still.
_UNWRITTEN_BYTES_MAX: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One message: JSON, and bytes that JSON has no form for."""

    content: Json
    data: bytes = b""


class Link:
    """One end of the socket between parent and child; belongs to one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, link: socket.socket) -> Self:
        """Use *link*, which is closed with this."""
        link.setblocking(False)
        return cls(*await asyncio.open_connection(sock=link))

    @property
    def is_clogged(self) -> bool:
        """Whether the other end has not read for long."""
        return self._writer.transport.get_write_buffer_size() > _UNWRITTEN_BYTES_MAX

    def send(self, content: Json, data: bytes = b"") -> None:
        """Send; never waits. What the other end does not live to read is lost."""
        if not self._writer.is_closing():
            head = json.dumps(content).encode()
            self._writer.write(_HEAD.pack(len(head), len(data)) + head + data)

    async def receive(self) -> Note | None:
        """The next message; None once the other end is gone."""
        try:
            content_bytes, data_bytes = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
            content = json.loads(await self._reader.readexactly(content_bytes))
            return Note(content=content, data=await self._reader.readexactly(data_bytes))
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def notes(self) -> AsyncIterator[Note]:
        """Every message, until the other end is gone."""
        while (note := await self.receive()) is not None:
            yield note

    def close(self) -> None:
        """Close; the other end hears of it."""
        self._writer.close()


class Child:
    """A process that was started here. It is told by signal or by ``link``, and its end is ``ended``."""

    def __init__(self, process: asyncio.subprocess.Process, link: Link) -> None:
        self.link = link
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str], *, keeps: Sequence[int] = ()) -> Self:
        """Start *command* with the number of its link's descriptor as one more argument.

        It is in a session of its own, so Ctrl-C at a terminal reaches us alone.

        Args:
            keeps: descriptors that it inherits.
        """
        ours, its = socket.socketpair()
        with its:
            process = await asyncio.create_subprocess_exec(
                *command,
                str(its.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(its.fileno(), *keeps),
                start_new_session=True,  # and with it a process group; uvloop knows nothing of the latter alone
            )
        return cls(process, await Link.open(ours))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def ended(self) -> int:
        """Wait for its end; its exit code, or minus the signal that ended it."""
        code = await self._process.wait()
        self.link.close()
        return code

    def kill(self) -> None:
        """Send SIGKILL to it and to what it has started in its process group."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)


def own_command(package: str, *arguments: str) -> list[str]:
    """The command line that runs *package*'s command with *arguments*, by the Python that runs this.

    The working directory stays out of the search path until the command itself puts it there: a module of the app
    must not take the place of one of ours.
    """
    return [sys.executable, "-P", "-m", package, *arguments]


def confine(*, memory_bytes: int, within_s: float) -> None:
    """Let this process end after *within_s*, whatever it does, and take only *memory_bytes* more than it has.

    More memory raises MemoryError; 0 is no limit, and there is none where the system does not tell what it has.
    """
    signal.setitimer(signal.ITIMER_REAL, within_s)  # SIGALRM ends a process that has no handler for it, in C code too
    sizes = Path("/proc/self/statm")
    if memory_bytes and sizes.exists():
        now = int(sizes.read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = now + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


async def parent(descriptor: int) -> Link:
    """The link to whoever started this process, whose number the command line told."""
    return await Link.open(socket.socket(fileno=descriptor))
