"""What stands on the broker: exchanges, queues and their arguments.

A queue's arguments can never change once it exists, so they are decided here for both processes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from outbox.naming import check_group

QueueKind = Literal["quorum", "classic"]

EVENTS_EXCHANGE: Final = "outbox.events"  # direct; routing key: Lane.routing_key
DIRECTORY_EXCHANGE: Final = "outbox.directory"  # direct; routing key: the group
ROLL_CALL_EXCHANGE: Final = "outbox.roll_call"  # fanout; routing key: the group that asks
REFUSED_EXCHANGE: Final = "outbox.refused"  # topic; what the broker itself dead-letters, key as published
DEAD_EXCHANGE: Final = "outbox.dead"  # topic; copies of dead letters, key as published

EXCHANGES: Final = {
    EVENTS_EXCHANGE: "direct",
    DIRECTORY_EXCHANGE: "direct",
    ROLL_CALL_EXCHANGE: "fanout",
    REFUSED_EXCHANGE: "topic",
    DEAD_EXCHANGE: "topic",
}

# -1 would drop at the first nack on RabbitMQ 3.10, and 4.x defaults to 20; the count that matters is ours.
_DELIVERY_LIMIT: Final = 1_000_000
_ANNOUNCEMENTS_MAX: Final = 100_000


def directory_queue(group: str) -> str:
    """Where the lanes of *group* are announced."""
    return f"outbox.directory.{check_group(group)}"


def refused_queue(group: str) -> str:
    """Where the broker's own dead letters of *group* arrive."""
    return f"outbox.refused.{check_group(group)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundQueue:
    """A queue and how it is bound."""

    name: str
    exchange: str
    routing_key: str
    arguments: Mapping[str, str | int]


def group_queues(group: str, kind: QueueKind) -> tuple[BoundQueue, ...]:
    """The queues of *group* that are no lanes, in the order in which they must be made: a lane names the first."""
    arguments: dict[str, str | int] = {"x-queue-type": kind}
    if kind == "quorum":
        arguments["x-delivery-limit"] = _DELIVERY_LIMIT
    return (
        BoundQueue(name=refused_queue(group), exchange=REFUSED_EXCHANGE, routing_key=f"{group}.#", arguments=arguments),
        BoundQueue(
            name=directory_queue(group),
            exchange=DIRECTORY_EXCHANGE,
            routing_key=group,
            # A group that nobody runs would collect announcements for ever; what is dropped is announced again.
            arguments=arguments | {"x-max-length": _ANNOUNCEMENTS_MAX},
        ),
    )


def lane_arguments(kind: QueueKind) -> dict[str, str | int]:
    """The arguments every lane is declared with."""
    arguments: dict[str, str | int] = {"x-queue-type": kind, "x-dead-letter-exchange": REFUSED_EXCHANGE}
    if kind == "quorum":
        arguments |= {
            "x-delivery-limit": _DELIVERY_LIMIT,
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",  # at-least-once dead-lettering is refused without it
        }
    return arguments


def keys_taking(exchange: str, routing_key: str) -> tuple[str, ...]:
    """The keys by which a queue may be bound to *exchange* so that *routing_key* reaches it.

    A topic's are the key itself and the patterns whose last word is ``#``: no others are bound here.
    """
    if EXCHANGES.get(exchange) != "topic":
        return (routing_key,)
    words = routing_key.split(".")
    return (routing_key, *(".".join([*words[:length], "#"]) for length in range(len(words) + 1)))
