"""Console scripts of ours as a person has them: on a terminal, or with their output piped."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH")
_WITHIN_S = 60.0
_INTERRUPT = "\x03"
_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended. *out* is what a pipe got; *screen* what the terminal did."""

    code: int
    out: str
    screen: str


def script(name: str) -> str:
    """The console script *name* beside this Python."""
    return str(Path(sys.executable).with_name(name))


def environment(**settings: str) -> dict[str, str]:
    """What of ours such a command sees, and *settings*."""
    return {**{name: os.environ[name] for name in _KEPT if name in os.environ}, **settings}


def piped(*command: str, cwd: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run *command* to its end without any terminal."""
    return subprocess.run(
        [script(command[0]), *command[1:]],
        cwd=cwd,
        env=environment(**settings),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_WITHIN_S,
        check=False,
    )


def on_terminal(
    *command: str,
    cwd: Path,
    settings: Mapping[str, str],
    types: Mapping[str, str] | None = None,
    out_is_piped: bool = False,
) -> Ended:
    """Run *command* on a terminal of 80 columns.

    Args:
        types: what a person types once the screen shows the key; each once, but Ctrl-C again whenever nothing came of
            it, for Python's `input` sleeps on if it was pressed just before it began to read.
        out_is_piped: standard output is a pipe, and the terminal has only standard error.
    """
    ours, its = pty.openpty()
    try:
        process = subprocess.Popen(
            [script(command[0]), *command[1:]],
            cwd=cwd,
            env=environment(**{"TERM": "xterm-256color", "COLUMNS": "80", **settings}),
            stdin=its,
            stdout=subprocess.PIPE if out_is_piped else its,
            stderr=its,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - this test process has no other threads that matter to it
        )
    finally:
        os.close(its)
    waiting, typed, typed_at, screen = dict(types or {}), "", 0.0, ""
    until = time.monotonic() + _WITHIN_S
    try:
        while time.monotonic() < until:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    read = os.read(ours, 65536)
                except OSError:  # the other side is closed
                    break
                screen += read.decode(errors="replace")
                for shown in [shown for shown in waiting if shown in screen]:
                    typed, typed_at = waiting.pop(shown), time.monotonic()
                    os.write(ours, typed.encode())
            elif process.poll() is not None:
                break
            elif typed == _INTERRUPT and time.monotonic() - typed_at > _PATIENCE_S:
                typed_at = time.monotonic()
                os.write(ours, typed.encode())
        out = process.stdout.read().decode() if process.stdout else ""
        return Ended(code=process.wait(timeout=_WITHIN_S), out=out, screen=screen)
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
        os.close(ours)


def _take_terminal() -> None:
    """Make standard input the controlling terminal, so that what is typed as Ctrl-C interrupts."""
    import fcntl  # noqa: PLC0415 - after fork, before exec
    import termios  # noqa: PLC0415

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
