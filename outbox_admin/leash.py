"""Servers we start ourselves and that must not outlive us.

A server is a child in a session of its own, so a Ctrl-C at the terminal does not reach it before we
have finished with it. A small shell holds the other end of a pipe: when this process ends, however it
ends, the pipe closes and the shell kills what is left and removes its directory.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.02

# $1 is the process group, $2 a directory to remove or nothing. `read` returns when the pipe closes.
_WATCH = """
trap '' INT HUP TERM QUIT
read -r _
kill -KILL "-$1" 2>/dev/null
[ -z "$2" ] || { sleep 0.5; rm -rf -- "$2"; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Whom a server runs as."""

    uid: int
    gid: int


class Leashed:
    """One child process with its log file; it ends with us."""

    def __init__(self, process: subprocess.Popen[bytes], watch: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._watch = watch
        self.log = log

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        account: Account | None = None,
        max_open_files: int | None = None,
        remove_at_death: Path | None = None,
    ) -> "Leashed":
        """Start *command*, its output appended to *log*.

        Args:
            account: run as this one; only root can.
            max_open_files: raise the soft limit to this, or to the hard limit where that is lower.
            remove_at_death: removed if we die without ending the process; never on a normal end.
        """
        if max_open_files is not None:
            wanted = f'ulimit -n {max_open_files} 2>/dev/null || ulimit -n "$(ulimit -Hn)"; exec "$@"'
            command = ["/bin/sh", "-c", wanted, "sh", *command]
        with log.open("ab") as output:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if environment is None else dict(environment),
                cwd="/",
                start_new_session=True,
                user=None if account is None else account.uid,
                group=None if account is None else account.gid,
                extra_groups=None if account is None else [],
            )
        watch = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "watch", str(process.pid), str(remove_at_death or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        return cls(process, watch, log)

    @property
    def pid(self) -> int:
        """The child's process id, which is also its process group."""
        return self._process.pid

    def is_running(self) -> bool:
        """Whether the child has not ended yet."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int:
        """The ended child's exit code, or minus the signal that ended it."""
        return self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send *number* to the child alone; nothing happens if it has ended."""
        self._process.send_signal(number)

    def end(self, number: signal.Signals, *, within_s: float) -> None:
        """Ask with *number*, kill the whole group after *within_s*; the child is gone on return."""
        self._process.send_signal(number)
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._unleash()

    def kill(self) -> None:
        """Kill the child and everything below it at once, as a power cut would; all gone on return."""
        # Children are listed before their parent dies: afterwards nothing tells whose they were.
        children = descendants(self.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._process.wait()
        until = time.monotonic() + 10
        while any(is_alive(child) for child in children) and time.monotonic() < until:
            time.sleep(_POLL_S)
        self._unleash()

    def tail(self, lines: int = 12) -> str:
        """The last *lines* of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _unleash(self) -> None:
        # Killed before its pipe closes: by then the process group's number may be somebody else's.
        self._watch.kill()
        self._watch.wait()
        if self._watch.stdin is not None:
            self._watch.stdin.close()


def descendants(pid: int) -> list[int]:
    """The ids of all processes below *pid*, nearest first."""
    parents = _parents()
    found: list[int] = []
    level = {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        found.extend(level)
    return found


def _parents() -> dict[int, int]:
    if Path("/proc/self/stat").exists():
        table = _proc_table()
    else:
        table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False).stdout  # noqa: S607 (found on PATH: where it lies differs by system)
    return {int(pid): int(parent) for pid, parent in (line.split() for line in table.splitlines())}


def _proc_table() -> str:
    lines = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The command's name stands in brackets and may itself hold blanks and brackets.
            lines.append(f"{stat.parent.name} {stat.read_text(errors='replace').rpartition(')')[2].split()[1]}")
    return "\n".join(lines)


def is_alive(pid: int) -> bool:
    """Whether a process *pid* still runs; one that has ended and that nobody has collected does not."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        os.kill(pid, 0)
        # A zombie holds no memory, files or sockets: nothing of it stands in a restart's way.
        return not stat.exists() or stat.read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
