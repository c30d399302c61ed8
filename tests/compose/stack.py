"""The services of compose.yaml that are ours, from the files of their images, as the images' user."""

import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from signal import SIGTERM

from outbox_admin.embedded import free_port
from outbox_admin.leash import Account, Leashed
from tests.compose.building import UID, Builder, Built
from tests.compose.deployment import Service, services
from tests.compose.servers import Servers

ONCE = ("set-up", "shop-schema")
LASTING = ("mail", "relay", "consumer", "shop")
_ONCE_S = 60.0
_READY_S = 60.0


class Stack:
    """Runs what compose.yaml says, with the tests' servers at the addresses that stand there."""

    def __init__(self, builder: Builder, servers: Servers) -> None:
        self.services = services()
        self._builder = builder
        self._account = Account(uid=UID, gid=UID) if os.geteuid() == 0 else None
        self._ports = {name: free_port() for name in LASTING}
        self._places: Mapping[str, str] = {
            "@postgres:5432/": f"@127.0.0.1:{servers.postgres.port}/",
            "@rabbitmq:5672/": f"@127.0.0.1:{servers.rabbit.port}/",
            "http://rabbitmq:15672": servers.rabbit.management.url,
            "http://mail:8000": f"http://127.0.0.1:{self._ports['mail']}",
        }
        self._logs = Path(tempfile.mkdtemp(prefix="fairpost-stack-"))
        self._running: dict[str, Leashed] = {}

    def start(self) -> None:
        """Set everything up, as often as it likes, and start the rest in its order."""
        for name in (*ONCE, *ONCE):  # every `up` runs them anew
            self.run_once(name)
        for name in LASTING:
            self._start(self.services[name])
            self._until(lambda name=name: self.is_healthy(name), what=f"{name} to be healthy")  # type: ignore[misc]

    def close(self) -> None:
        """End what still runs."""
        for process in self._running.values():
            process.kill()
        shutil.rmtree(self._logs, ignore_errors=True)

    def run_once(self, name: str) -> str:
        """Run a service that ends; what it printed. Raises AssertionError: it failed."""
        return self.run_in(name, self.services[name].command)

    def run_in(self, name: str, command: list[str]) -> str:
        """Run *command* in another container of the service *name*, as ``docker compose run`` does."""
        code, printed = self.ask_in(name, command)
        assert code == 0, f"{name}: {command} ended with {code}: {printed[-3000:]}"
        return printed

    def ask_in(self, name: str, command: list[str]) -> tuple[int, str]:
        """As ``run_in``, whatever comes of it: the exit code, and what it printed."""
        return self._run(self.services[name], command)

    def is_healthy(self, name: str) -> bool:
        """What its health check says now."""
        process = self._running[name]
        assert process.is_running(), f"{name} ended: {process.tail(30)}"
        check = self.services[name].healthcheck
        assert check is not None
        return self._run(self.services[name], check)[0] == 0

    def get(self, name: str, path: str, *, tenant: str = "") -> str:
        """What *name* answers to a GET."""
        headers = {"X-Tenant-ID": tenant} if tenant else {}
        return self._ask(urllib.request.Request(f"http://127.0.0.1:{self._ports[name]}{path}", headers=headers))

    def post(self, name: str, path: str, body: bytes, *, headers: Mapping[str, str]) -> str:
        """What *name* answers to a POST of JSON."""
        url = f"http://127.0.0.1:{self._ports[name]}{path}"
        more = {"Content-Type": "application/json", **headers}
        return self._ask(urllib.request.Request(url, body, more, method="POST"))

    def account_of(self, name: str) -> int:
        """The user id that *name*'s first process runs as."""
        return os.stat(f"/proc/{self._running[name].pid}").st_uid

    def stop(self, name: str, *, within_s: float) -> int:
        """Ask it to end as Docker does; its exit code, or minus the signal that it took."""
        process = self._running.pop(name)
        process.end(SIGTERM, within_s=within_s)
        return process.exit_code

    def said(self, name: str) -> str:
        """What it has printed."""
        return self._running[name].log.read_text(errors="replace")

    def _ask(self, request: urllib.request.Request) -> str:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    def _start(self, service: Service) -> None:
        built, words, environment = self._as_here(service, service.command)
        self._running[service.name] = Leashed.start(
            ["/bin/sh", "-c", 'cd "$0" && exec "$@"', built.local(built.directory), *words],
            log=self._logs / service.name,
            environment=environment,
            account=self._account,
        )

    def _run(self, service: Service, command: list[str]) -> tuple[int, str]:
        built, words, environment = self._as_here(service, command)
        done = subprocess.run(
            words,
            cwd=built.local(built.directory),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_ONCE_S,
            user=None if self._account is None else self._account.uid,
            group=None if self._account is None else self._account.gid,
            extra_groups=None if self._account is None else [],
        )
        return done.returncode, done.stdout

    def _as_here(self, service: Service, command: list[str]) -> tuple[Built, list[str], dict[str, str]]:
        """The image's files, and command and environment with paths, addresses and ports as they are here."""
        assert service.image is not None
        built = self._builder.build(service.image.target)
        for source, target, _ in service.mounts:
            here = Path(built.local(target))
            here.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, here)
        environment = {name: self._local(built, service, value) for name, value in service.environment.items()}
        path = environment["PATH"].replace("$PATH", os.defpath)
        words = [self._local(built, service, word) for word in command]
        program = shutil.which(words[0], path=path)
        assert program, f"{service.name}: want {words[0]} in the image, got none on {path}"
        return built, [program, *words[1:]], environment | {"PATH": path, "HOME": "/", "LANG": "C.UTF-8"}

    def _local(self, built: Built, service: Service, text: str) -> str:
        for there, here in self._places.items():
            text = text.replace(there, here)
        own = self._ports.get(service.name)
        for port in ("8000", "8081", "8082") if own else ():
            text = text if text != port and f"', {port}," not in text else text.replace(port, str(own))
        return built.local(text)

    def _until(self, holds: Callable[[], bool], *, what: str) -> None:
        until = time.monotonic() + _READY_S
        while not holds():
            assert time.monotonic() < until, f"want {what} within {_READY_S:g} s: {self._tails()}"

    def _tails(self) -> str:
        return "\n".join(f"{name}: {process.tail(15)}" for name, process in self._running.items())
