"""Versions: of PostgreSQL, RabbitMQ, Python, and of the packages that we lean on."""

from typing import Final

from outbox_admin.doctor.facts import Broker, Host, Server
from outbox_admin.doctor.finding import Finding, ok, problem, warning

_POSTGRES: Final = (13, 18)
_RABBITMQ: Final = ((3, 10), (4, 3))
_PYTHON: Final = ((3, 11), (3, 14))
_OF_ONE_POSTGRES: Final = 10_000


def of_host(host: Host) -> list[Finding]:
    """Whether Python and the packages are those that we were tested with."""
    python = f"Python {_dotted(host.python)}"
    if host.python < _PYTHON[0]:
        found = [problem("python", f"{python} is too old", f"install Python {_dotted(_PYTHON[0])} or newer")]
    elif host.python > _PYTHON[1]:
        found = [warning("python", f"{python} is newer than what was tested", f"use Python {_range(_PYTHON)}")]
    else:
        found = [ok("python", python)]
    wrong = [package for package in host.packages if not package.fits]
    found += [
        problem(
            "packages",
            f"{one.name} {one.version or 'is not installed'}{'' if one.version is None else f', want {one.wanted}'}",
            f"pip install '{one.name}{one.wanted}'",
        )
        for one in wrong
    ]
    if not wrong:
        found.append(ok("packages", f"{len(host.packages)} packages are within the ranges that were tested"))
    return found


def of_server(server: Server) -> list[Finding]:
    """Whether PostgreSQL is one that we were tested with."""
    major, says = server.version_num // _OF_ONE_POSTGRES, f"PostgreSQL {server.version} at {server.address}"
    least, most = _POSTGRES
    if major < least:
        return [problem("postgresql", f"{says} is too old", f"upgrade it to {least}..{most}")]
    if major > most:
        return [warning("postgresql", f"{says} is newer than what was tested", f"use PostgreSQL {least}..{most}")]
    return [ok("postgresql", says)]


def of_broker(broker: Broker) -> list[Finding]:
    """Whether RabbitMQ is one that we were tested with."""
    says = f"RabbitMQ {broker.version} at {broker.address}"
    parts = broker.version.split(".")
    try:
        version = (int(parts[0]), int(parts[1]))
    except (IndexError, ValueError):
        return [warning("rabbitmq", f"{says} tells no version that we know", f"use RabbitMQ {_range(_RABBITMQ)}")]
    if version < _RABBITMQ[0]:
        return [problem("rabbitmq", f"{says} is too old", f"upgrade it to {_range(_RABBITMQ)}")]
    if version > _RABBITMQ[1]:
        return [warning("rabbitmq", f"{says} is newer than what was tested", f"use RabbitMQ {_range(_RABBITMQ)}")]
    return [ok("rabbitmq", says)]


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _range(versions: tuple[tuple[int, int], tuple[int, int]]) -> str:
    return "..".join(map(_dotted, versions))
