"""A terminal as a page's reader has it: a shell that is given one line after the other, and what it prints."""

import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from outbox_admin.leash import descendants


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command has printed, stdout and stderr together, and how it ended; None is: it still runs."""

    text: str
    code: int | None


class Terminal:
    """One shell; what was started in it ends with ``close``."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        """Open it in *directory*, with *environment* and nothing else."""
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=dict(environment),
            start_new_session=True,
        )
        self._said = b""
        self._changed = threading.Condition()
        self._mark = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def enter(self, command: str, *, deadline_s: float, is_enough: Callable[[str], bool] = lambda _: False) -> Answer:
        """Give the shell *command*; return when it has ended, or goes on and *is_enough* of what it has printed.

        Raises:
            AssertionError: neither came within *deadline_s*.
        """
        self._mark = secrets.token_hex(8)
        with self._changed:
            self._said = b""
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{command}\nprintf '%s\\n' \"{self._mark} $?\"\n".encode())
        self._shell.stdin.flush()
        return self._answer(command, deadline_s, is_enough)

    def interrupt(self, *, deadline_s: float) -> Answer:
        """Press Ctrl-C: what runs in front is asked to end, and has on return."""
        os.killpg(self._shell.pid, signal.SIGINT)
        return self._answer("Ctrl-C", deadline_s, lambda _: False)

    def close(self) -> None:
        """End the shell and all below it."""
        below = descendants(self._shell.pid)
        for pid in (self._shell.pid, *below):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._shell.wait()
        self._reader.join(10)
        for stream in (self._shell.stdin, self._shell.stdout):
            assert stream is not None
            stream.close()

    def _answer(self, command: str, deadline_s: float, is_enough: Callable[[str], bool]) -> Answer:
        until = time.monotonic() + deadline_s
        with self._changed:
            while True:
                text, mark, code = self._said.decode(errors="replace").partition(self._mark)
                if mark and code.endswith("\n"):
                    return Answer(text=text, code=int(code))
                if is_enough(text):
                    return Answer(text=text, code=None)
                assert time.monotonic() < until, f"{command}: not through after {deadline_s:g} s, said:\n{text}"
                self._changed.wait(0.1)

    def _read(self) -> None:
        assert self._shell.stdout is not None
        while chunk := os.read(self._shell.stdout.fileno(), 65536):
            with self._changed:
                self._said += chunk
                self._changed.notify_all()
