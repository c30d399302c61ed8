"""What stands on the broker: exchanges, queues and their arguments.

A queue's arguments can never change once it exists, so they are decided here for both processes.
"""

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


def directory_queue(group: str) -> str:
    """Where the lanes of *group* are announced."""
    return f"outbox.directory.{check_group(group)}"


def refused_queue(group: str) -> str:
    """Where the broker's own dead letters of *group* arrive."""
    return f"outbox.refused.{check_group(group)}"


def group_queues(group: str) -> tuple[tuple[str, str, str], ...]:
    """The queues of *group* that are no lanes, each with the exchange and the routing key it is bound by."""
    return (
        (directory_queue(group), DIRECTORY_EXCHANGE, group),
        (refused_queue(group), REFUSED_EXCHANGE, f"{group}.#"),
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


def service_arguments(kind: QueueKind) -> dict[str, str | int]:
    """The arguments of directory and refused queues, which nothing dead-letters from."""
    arguments: dict[str, str | int] = {"x-queue-type": kind}
    if kind == "quorum":
        arguments["x-delivery-limit"] = _DELIVERY_LIMIT
    return arguments
