"""The part of RabbitMQ's HTTP API that tests need: a vhost costs milliseconds here, seconds with rabbitmqctl."""

import base64
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from urllib.parse import quote

_TIMEOUT_S = 10.0
# Thousands of queues go with a vhost.
_DELETE_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Management:
    """A broker's HTTP API at *url*."""

    url: str
    user: str
    password: str

    def answers(self) -> bool:
        """Whether the API answers and the node is running."""
        try:
            self._call("GET", "/api/overview")
        except (OSError, ValueError):
            return False
        return True

    def version(self) -> str:
        """The broker's version."""
        overview = self._call("GET", "/api/overview")
        assert isinstance(overview, dict)
        return str(overview["rabbitmq_version"])

    def add_vhost(self, name: str) -> None:
        """Make the vhost *name*; this user may do everything in it."""
        self._call("PUT", f"/api/vhosts/{quote(name, safe='')}", {})
        self.allow(self.user, name)

    def add_user(self, user: str, password: str, *, tags: str = "") -> None:
        """Make a user that may do nothing yet, or give one another password."""
        self._call("PUT", f"/api/users/{quote(user, safe='')}", {"password": password, "tags": tags})

    def delete_user(self, user: str) -> None:
        """Delete the user, and close its connections."""
        self._call("DELETE", f"/api/users/{quote(user, safe='')}")

    def allow(self, user: str, vhost: str, *, configure: str = ".*", write: str = ".*", read: str = ".*") -> None:
        """Let *user* do in *vhost* what these patterns match, and nothing else."""
        permissions = {"configure": configure, "write": write, "read": read}
        self._call("PUT", f"/api/permissions/{quote(vhost, safe='')}/{quote(user, safe='')}", permissions)

    def delete_vhost(self, name: str) -> None:
        """Delete the vhost *name* and all in it."""
        self._call("DELETE", f"/api/vhosts/{quote(name, safe='')}", timeout_s=_DELETE_S)

    def queue_names(self, vhost: str) -> list[str]:
        """The names of the queues of *vhost*, sorted."""
        listed = self._call("GET", f"/api/queues/{quote(vhost, safe='')}?disable_stats=true&page_size=500&page=1")
        assert isinstance(listed, dict)
        return sorted(str(item["name"]) for item in listed["items"])

    def _call(
        self, method: str, path: str, body: dict[str, str] | None = None, *, timeout_s: float = _TIMEOUT_S
    ) -> object:
        login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Basic {login}", "Content-Type": "application/json"},
        )
        until = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                    content = answer.read()
                    return json.loads(content) if content else None
            except urllib.error.HTTPError as error:
                detail = error.read().decode(errors="replace")
                # A vhost being deleted or made answers so for a moment.
                if error.code not in {500, 503} or time.monotonic() > until or method == "GET":
                    raise OSError(f"{method} {path}: {error.code} {detail}") from error
            time.sleep(0.1)
