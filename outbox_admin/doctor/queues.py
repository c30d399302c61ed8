"""Queues: arguments that are not ours, policies that lose messages, lanes that nobody consumes."""

import re
from collections.abc import Sequence
from typing import Final

from outbox_admin.doctor.facts import Broker, Policy, Queue
from outbox_admin.doctor.finding import Finding, ok, problem, warning

#: What a policy must not do to a lane: each of them drops messages, or the queue with all in it; a limit on its length
#: only where it does not refuse what is published instead.
_LENGTHS: Final = {"max-length", "max-length-bytes"}
_LOSING: Final = {"expires", "message-ttl", "delivery-limit"} | _LENGTHS
_NAMED_MAX: Final = 5


def arguments(broker: Broker) -> list[Finding]:
    """Whether what stands there has the arguments that our settings ask for."""
    drifted = [queue for queue in broker.queues if queue.drift]
    found = [
        problem(
            "queue arguments",
            f"{one.name}: {one.drift}; the relay will not publish to it",
            "set OUTBOX_QUEUE_KIND to what it was made with, or empty and delete the queue",
        )
        for one in drifted[:_NAMED_MAX]
    ]
    remedy = "rabbitmqctl list_queues name type arguments has them all"
    found += _more("queue arguments", len(drifted), "queues with other arguments", remedy)
    missing = [queue.name for queue in broker.queues if queue.messages is None]
    if missing:
        says = f"{len(missing)} queues are not there, as {missing[0]}; the relay makes them when it publishes"
        found.append(warning("queues", says, "outbox-relay run"))
    left = f"; {broker.left_out} were not looked at" if broker.left_out else ""
    return found or [ok("queues", f"{len(broker.queues)} queues have the arguments that are set{left}")]


def losing(broker: Broker, policies: Sequence[Policy]) -> list[Finding]:
    """Whether a policy loses messages of ours."""
    found = []
    for queue in broker.queues:
        losing = _LOSING - _LENGTHS if queue.refuses_when_full else _LOSING
        keys = sorted(losing & _set(queue.name, policies))
        if keys:
            says = f"a policy sets {', '.join(keys)} on {queue.name}: messages are lost by it"
            remedy = "rabbitmqctl list_policies; then clear_policy, or narrow its pattern"
            found.append(problem("queue policies", says, remedy))
    remedy = "rabbitmqctl list_queues name policy operator_policy has them all"
    return found[:_NAMED_MAX] + _more("queue policies", len(found), "queues with such a policy", remedy)


def _set(queue: str, policies: Sequence[Policy]) -> set[str]:
    """What the users' policy and the operators' policy that count for *queue* set."""
    keys: set[str] = set()
    for is_operators in (False, True):
        fitting = [one for one in policies if one.is_operators is is_operators and _fits(one.pattern, queue)]
        if fitting:
            keys |= set(max(fitting, key=lambda one: one.priority).definition)
    return keys


def _fits(pattern: str, queue: str) -> bool:
    try:
        return re.search(pattern, queue) is not None
    except re.error:  # Erlang's expressions have forms that Python's have not
        return False


def consumption(queues: Sequence[Queue]) -> list[Finding]:
    """Whether somebody consumes each lane."""
    lanes = [queue for queue in queues if queue.is_lane and queue.messages is not None]
    idle = [lane for lane in lanes if not lane.consumers]
    full = [lane for lane in idle if lane.messages]
    if full:
        events = sum(lane.messages or 0 for lane in full)
        groups = ", ".join(sorted({lane.group for lane in full}))
        says = f"{len(full)} lanes of {groups} hold {events:,} events and nobody consumes them, as {full[0].name}"
        return [problem("lanes", says, "outbox-consumer run app:consumer; outbox-consumer status says more")]
    if idle:
        says = f"nobody consumes {len(idle)} of {len(lanes)} lanes; they are empty"
        return [warning("lanes", says, "outbox-consumer run app:consumer")]
    return [ok("lanes", f"each of {len(lanes)} lanes is consumed")]


def _more(subject: str, found: int, what: str, remedy: str) -> list[Finding]:
    rest = found - _NAMED_MAX
    return [problem(subject, f"{rest} more {what}", remedy)] if rest > 0 else []
