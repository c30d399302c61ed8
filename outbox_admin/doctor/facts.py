"""What is so, as values: asked for by the ``*_facts`` modules, judged by the others."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """An installed distribution that one of ours requires: its *version*, and the range that is *wanted* of it."""

    name: str
    version: str | None
    wanted: str
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """This process's Python, as ``3.12``, and what it needs."""

    python: tuple[int, int]
    packages: tuple[Package, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A PostgreSQL server, as the connecting role sees it.

    *version_num* is as 150020. *clock_s* is by how much its clock is ahead of this host's, known to *error_s*.
    """

    address: str
    version: str
    version_num: int
    role: str
    is_superuser: bool
    bypasses_rls: bool
    policies: int
    is_standby: bool
    is_read_only: bool
    clock_s: float
    error_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A chain of migrations: *current* is None where its schema is not there, or may not be read."""

    name: str
    current: str | None
    newest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A privilege that a role lacks; *grant* is what gives it."""

    what: str
    privilege: str
    grant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Privileges:
    """What *role* lacks of what *process* needs. *objects*: how many were looked at."""

    role: str
    process: str
    objects: int
    missing: tuple[Missing, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """The server's connections, and what keeps it from cleaning up.

    *slots*: replication slots that hold a snapshot or the log back, by name, with how many transactions that is.
    *wanted*: how many connections the processes that are alive here take.
    """

    max_connections: int
    reserved: int
    used: int
    wanted: int
    max_prepared: int
    prepared: int
    prepared_oldest_s: float
    open_oldest_s: float
    open_oldest_by: str
    slots: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What of a session outlives a transaction; each is false behind a pooler that shares sessions."""

    keeps_settings: bool
    keeps_backend: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the broker does to queues whose names *pattern* finds; of several the highest *priority* counts."""

    pattern: str
    priority: int
    definition: Mapping[str, object]
    is_operators: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue that we know of. *messages* is None where it is not there.

    *drift*: what the broker says where its arguments are not ours. *refuses_when_full*: it drops nothing that it holds.
    """

    name: str
    group: str
    is_lane: bool
    messages: int | None
    consumers: int = 0
    drift: str = ""
    refuses_when_full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """RabbitMQ over AMQP. *left_out*: how many queues were not looked at."""

    address: str
    version: str
    queues: tuple[Queue, ...] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of the broker, as its HTTP API tells. None: this version does not tell it."""

    name: str
    handles: int | None
    handles_max: int | None
    has_memory_alarm: bool
    has_disk_alarm: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Management:
    """The broker's HTTP API, which tells time in whole seconds."""

    url: str
    nodes: tuple[Node, ...]
    clock_s: float
