"""A private RabbitMQ node from local programs: its own ports, directories and port mapper."""

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from outbox.errors import BrokerUnavailable
from outbox_admin.embedded import free_port
from outbox_admin.leash import Leashed
from tests.support.management import Management

PROGRAMS_VARIABLE = "TEST_RABBITMQ_BIN"
_DIRECTORIES = ("/usr/lib/rabbitmq/bin", "/usr/local/opt/rabbitmq/sbin", "/opt/homebrew/opt/rabbitmq/sbin")
# 3.10 takes two handles per quorum queue and, out of them, stops answering without a word.
_OPEN_FILES = 65536
_CONFIGURATION = """
listeners.tcp.1 = 127.0.0.1:{port}
management.tcp.ip = 127.0.0.1
management.tcp.port = {management_port}
management.disable_stats = true
management_agent.disable_metrics_collector = true
disk_free_limit.absolute = 10MB
vm_memory_high_watermark.relative = 0.6
log.file.level = info
"""
_NO_ALARM = "0.6"
# Below what an idle node uses: every publishing connection is blocked at once.
_ALARM = "0.000001"


def find_programs() -> Path | None:
    """The directory with ``rabbitmq-server`` and ``rabbitmqctl`` in it, not their wrappers that change accounts.

    Raises:
        BrokerUnavailable: they are not in the directory that was asked for, which is never replaced.
    """
    if asked := os.environ.get(PROGRAMS_VARIABLE):
        if not (Path(asked) / "rabbitmq-server").exists():
            raise BrokerUnavailable(f"want rabbitmq-server in {asked}, found none ({PROGRAMS_VARIABLE})")
        return Path(asked)
    on_path = shutil.which("rabbitmq-server")
    candidates = [*map(Path, _DIRECTORIES), *([] if on_path is None else [Path(on_path).resolve().parent])]
    return next((path for path in candidates if (path / "rabbitmq-server").exists()), None)


class RabbitNode:
    """A private node on loopback; it comes back from ``stop`` and ``kill`` on the same port with the same data."""

    origin = "private node, local binaries"

    def __init__(self, *, programs: Path) -> None:
        """Lay the node's directory and take its ports; nothing runs yet."""
        self._programs = programs
        self.port = free_port()
        self.management = Management(url=f"http://127.0.0.1:{free_port()}", user="guest", password="guest")
        self._mapper_port = free_port()
        self._dist_port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="fairpost-rabbit-"))
        self._name = f"{self.directory.name}@localhost"
        self._node: Leashed | None = None
        self._mapper: Leashed | None = None
        atexit.register(self.close)
        self._lay_files()

    @property
    def version(self) -> str:
        """The broker's version, as it says it."""
        return self.management.version()

    @property
    def pid(self) -> int:
        """The process id of the node's first process."""
        assert self._node is not None, "the node is stopped"
        return self._node.pid

    def url(self, vhost: str = "/") -> str:
        """An AMQP URL for *vhost*."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{quote(vhost, safe='')}"

    def start(self, *, within_s: float = 90.0) -> None:
        """Start the node; it takes connections, and its HTTP API answers, on return.

        Raises:
            BrokerUnavailable: it ended, or was not ready within *within_s*; the message has its last words.
        """
        if self._node is not None and self._node.is_running():
            return
        self._start_mapper()
        self._node = Leashed.start(
            [str(self._programs / "rabbitmq-server")],
            log=self.directory / "output",
            environment=self._environment(),
            max_open_files=_OPEN_FILES,
            remove_at_death=self.directory,
        )
        until = time.monotonic() + within_s
        # The HTTP API is up some milliseconds before the AMQP listener.
        while not (self.management.answers() and _accepts(self.port)):
            if not self._node.is_running() or time.monotonic() > until:
                last_words = self._node.tail(30)
                self.kill()
                raise BrokerUnavailable(f"RabbitMQ did not start within {within_s:g} s:\n{last_words}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Shut the node down in good order; its port mapper goes with it."""
        if self._node is not None:
            node, self._node = self._node, None
            # The start script passes it on to the broker, which closes its connections and writes everything.
            node.end(signal.SIGTERM, within_s=30.0)
        self._stop_mapper()

    def kill(self) -> None:
        """Kill every process of the node at once.

        RabbitMQ 3.10 writes its list of quorum queues to disk about once a second: one declared in the last
        two seconds comes back without a leader and never answers.
        """
        if self._node is not None:
            node, self._node = self._node, None
            node.kill()
        self._stop_mapper()

    def restart(self) -> None:
        """Stop, unless stopped already, and start again."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End the node and remove its directory; may be called again."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
        atexit.unregister(self.close)

    def ctl(self, *arguments: str) -> str:
        """What ``rabbitmqctl`` with *arguments* prints; it takes about a second."""
        command = [str(self._programs / "rabbitmqctl"), "--quiet", *arguments]
        done = subprocess.run(
            command, env=self._environment(), capture_output=True, text=True, check=False, cwd="/", timeout=60
        )
        assert done.returncode == 0, f"rabbitmqctl {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def block(self) -> None:
        """Raise the memory alarm: publishers are blocked until ``unblock``."""
        self.ctl("set_vm_memory_high_watermark", _ALARM)

    def unblock(self) -> None:
        """Clear what ``block`` raised."""
        self.ctl("set_vm_memory_high_watermark", _NO_ALARM)

    def close_connections(self, reason: str = "closed by a test") -> None:
        """Have the broker close every client's connection."""
        self.ctl("close_all_connections", "--global", reason)

    def _lay_files(self) -> None:
        for name in ("home", "data", "logs"):
            (self.directory / name).mkdir()
        management_port = self.management.url.rpartition(":")[2]
        (self.directory / "rabbitmq.conf").write_text(
            _CONFIGURATION.format(port=self.port, management_port=management_port)
        )
        (self.directory / "enabled_plugins").write_text("[rabbitmq_management].\n")
        # Empty, so that what the machine's own node was told does not reach this one.
        (self.directory / "environment.conf").touch()
        (self.directory / "advanced.config").write_text("[].\n")

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(self.directory / "home"),
            "RABBITMQ_NODENAME": self._name,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "data"),
            "RABBITMQ_LOG_BASE": str(self.directory / "logs"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.directory / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "environment.conf"),
            "RABBITMQ_PID_FILE": str(self.directory / "pid"),
            # Schedulers that spin while idle would take the cores that the tests need.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def _start_mapper(self) -> None:
        # Started by us and in the foreground: one that Erlang starts by itself is a daemon that stays behind.
        mapper = shutil.which("epmd")
        if mapper is not None and (self._mapper is None or not self._mapper.is_running()):
            self._mapper = Leashed.start(
                [mapper, "-port", str(self._mapper_port), "-address", "127.0.0.1"],
                log=self.directory / "mapper",
                remove_at_death=self.directory,
            )

    def _stop_mapper(self) -> None:
        if self._mapper is not None:
            mapper, self._mapper = self._mapper, None
            mapper.kill()


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False
