"""What each process needs of the database, if its role does not own our tables: docs/how-to/roles.md in one table."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_ALL: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
_LOOK: Final = ("SELECT",)


class Process(StrEnum):
    """Whose role it is."""

    APP = "app"
    RELAY = "relay"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """By schema: privileges on tables (a name that ends in ``_*`` is every partition), sequences and functions."""

    schema: str
    tables: Mapping[str, tuple[str, ...]]
    sequences: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()


_EMIT: Final = Needs(
    schema="outbox",
    tables={
        "event": ("INSERT",),
        "scheduled": ("SELECT", "INSERT", "DELETE"),
        "ordering": ("SELECT", "INSERT", "UPDATE"),
        "key": _ALL,
    },
    sequences=("event_seq",),
    functions=("current_slot()",),
)
_RELAY: Final = Needs(
    schema="outbox",
    tables={
        "event": ("SELECT", "INSERT"),
        "event_*": _LOOK,
        "scheduled": ("SELECT", "UPDATE", "DELETE"),
        "ordering": ("SELECT", "UPDATE", "DELETE"),
        "key": ("SELECT", "UPDATE", "DELETE"),
        "consumer_group": ("SELECT", "UPDATE"),
        "bucket": ("SELECT", "INSERT", "UPDATE", "TRUNCATE"),
        "stream": (*_ALL, "TRUNCATE"),
        "relay": _ALL,
        "deferred": _ALL,
        "lane": _ALL,
        "replay": ("SELECT", "INSERT", "UPDATE"),
        "retained": _LOOK,
        "origin": _LOOK,
    },
    sequences=("event_seq", "token"),
    functions=("truncate_slot(integer, interval)", "rewrite_bucket()", "rewrite_stream()"),
)
_CONSUMER: Final = Needs(
    schema="consumer",
    tables={
        "ledger": _ALL,
        "ledger_*": _ALL,
        **dict.fromkeys(("incarnation", "work", "key_position", "key_claim", "dead", "dead_trace"), _ALL),
        **dict.fromkeys(("lane", "start", "result", "control", "permit", "permit_holder"), _ALL),
        "group_start": ("SELECT", "INSERT", "UPDATE"),
        "dead_owner": ("SELECT", "INSERT", "UPDATE"),
        "audit": ("SELECT", "INSERT"),
    },
    sequences=("token",),
    functions=("truncate_slot(integer, interval)",),
)
_QUEUES: Final = Needs(
    schema="outbox_broker",
    tables=dict.fromkeys(("queue", "message", "lease"), _ALL),
    sequences=("message_seq", "lease_token"),
)


def needs_of(process: Process, *, has_queues: bool) -> tuple[Needs, ...]:
    """What *process* needs. *has_queues*: whether the broker is PostgreSQL."""
    queues = (_QUEUES,) if has_queues else ()
    match process:
        case Process.APP:
            return (_EMIT,)
        case Process.RELAY:
            return (_RELAY, *queues)
        case Process.CONSUMER:
            return (_CONSUMER, *queues)
