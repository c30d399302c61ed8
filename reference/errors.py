"""``errors.md``: the errors, exit codes, and the categories of what could not be handled or published."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final, TypeVar

from consumer.decide.failure import FailureCategory
from consumer.outcome import DeadCategory
from outbox import errors
from outbox.shell import exits
from reference.markdown import code, page, table
from relay.ports import Category

E = TypeVar("E", bound=Enum)

_PACKAGES: Final = ("outbox", "relay", "consumer", "outbox_admin")
# What to do, by the error's name. An error without a line here has no page to be found on.
_REMEDIES: Final = {
    "OutboxError": "Catch one of its branches.",
    "ConfigError": "Mend the setting or option that the message names; `outbox config check` tells of all of them.",
    "InvalidEvent": "Mend the code that builds the event; nothing was written.",
    "PayloadTooLarge": "Send a reference to the data in place of the data.",
    "TenantRequired": "Give the tenant: as an argument of `emit`, on the session, or by `tenant_scope`.",
    "IdempotencyConflict": "Take another key for another payload; nothing was committed.",
    "TransientError": "Try again later; relay and consumer do so by themselves.",
    "StoreUnavailable": "Look whether PostgreSQL is up, reachable and takes connections.",
    "StoreRefused": "Correct the address, or what its user may do; a process that runs goes on by itself.",
    "BrokerRefused": "Correct the address, or what its user may do there; a process that runs goes on by itself.",
    "BrokerUnavailable": "Look whether the broker is up, reachable and takes publishes.",
    "LeaseLost": "Nothing, once: another process goes on. Often: the process stalls for longer than its lease.",
    "RetryLater": "Nothing: the policy picks the wait.",
    "ProcessDied": "Look into the log for why it ended; the event is tried again, and isolated if it kills again.",
    "PermanentError": "Mend the cause; trying again does not help.",
    "Unreadable": "Look at the dead letter: who publishes to our exchanges and queues beside the relay?",
    "SchemaMissing": "Run `outbox migrate` with the version that is installed.",
    "WrongDatabase": "After a restore or a failover: stop relays and apps, then run `outbox rebase`.",
    "IsStandby": "Give the address of the primary; during a failover it passes by itself.",
    "QueueMismatch": "Delete the queue once it is empty, or give `OUTBOX_QUEUE_KIND` the kind that it was made with.",
    "Dead": "Look at the dead letter: `outbox dead list`.",
    "LostTransaction": "Let the handler neither commit nor roll back, nor swallow an SQL error outside a savepoint.",
}
_EXITS: Final = {
    exits.DONE: ("DONE", "Done; a process was asked to stop and has."),
    1: ("", "A bug: an error that nobody foresaw, with its traceback. `outbox demo` ends so when something was lost."),
    exits.USAGE: ("USAGE", "The command line is wrong; the message says what was wanted."),
    exits.UNAVAILABLE: ("UNAVAILABLE", "The database or the broker cannot be reached: try again when it is back."),
    exits.TRY_AGAIN: (
        "TRY_AGAIN",
        "Start it again: it was stopped at once, or is worn. Of `outbox-consumer verify`: not so, or not yet.",
    ),
    exits.CONFIGURATION: (
        "CONFIGURATION",
        "A setting, the schema or a server is not as it must be, or a login is refused: starting again does not help.",
    ),
    exits.INTERRUPTED: ("INTERRUPTED", "Ctrl-C, or a question that was answered with no."),
}
_FAILURES: Final = {
    FailureCategory.TRANSIENT: ("May succeed when tried again.", "Tried again with backoff, then dead as `exhausted`."),
    FailureCategory.THROTTLED: ("May succeed later than it says.", "Tried again then; spends no attempt."),
    FailureCategory.UNKNOWN: ("Most often a bug.", "As `transient`."),
    FailureCategory.PERMANENT: ("Fails again.", "Dead at once."),
    FailureCategory.SECURITY: ("Must not be repeated.", "Dead at once, with an alert."),
}
_DEAD: Final = {
    DeadCategory.OVERSIZED: (
        "The body is over `OUTBOX_CONSUMER_PAYLOAD_BYTES_MAX`; it was not looked at.",
        "Raise the limit and replay, or discard.",
    ),
    DeadCategory.UNREADABLE: (
        "No envelope of ours, or damaged.",
        "Find out who published it; discard.",
    ),
    DeadCategory.SECURITY: (
        "A signature, a tenant or an authorisation does not hold.",
        "Find out why before anything else; a replay checks it again.",
    ),
    DeadCategory.UNKNOWN_TYPE: (
        "No handler here for its type.",
        "Deploy one: it is replayed by itself within `OUTBOX_CONSUMER_REPLAY_UNKNOWN_TYPE_H`, later by hand.",
    ),
    DeadCategory.UNKNOWN_VERSION: (
        "No handler here reads its version, most often a newer one.",
        "Deploy one that does: it is then replayed by itself.",
    ),
    DeadCategory.INVALID: (
        "The payload does not fit its type's schema.",
        "Mend the schema, or the code that emits; replay.",
    ),
    DeadCategory.OUTSIDE_HORIZON: (
        "Too old, or too far ahead, for the ledger to say whether it was done.",
        "See whether its effect is there; replay if not.",
    ),
    DeadCategory.PERMANENT: ("The handler cannot succeed, now or later.", "Mend the cause and replay, or discard."),
    DeadCategory.EXHAUSTED: (
        "Retried as often or as long as the policy allows.",
        "Mend the cause and replay.",
    ),
    DeadCategory.OVER_BUDGET: (
        "Not retried: too many others of its tenant were.",
        "Mend the cause and replay.",
    ),
    DeadCategory.REFUSED: (
        "The broker itself gave it up: a queue that was full, or a delivery limit.",
        "See to the queue; replay.",
    ),
    DeadCategory.POISON: (
        "It ended the process that handled it, more than once.",
        "Mend the handler, then replay.",
    ),
}
_DEFERRED: Final = {
    Category.UNROUTABLE: (
        "No queue took it, not even after the lane was declared again.",
        "See who deletes or unbinds our queues; it is tried again.",
    ),
    Category.TOO_LARGE: (
        "The payload is over the broker's limit on a message, `OUTBOX_RELAY_BODY_BYTES_MAX`.",
        "It is dead at once. Raise both limits, then `outbox deferred retry`; or discard.",
    ),
    Category.MISMATCH: (
        "Its queue exists with other arguments.",
        "Delete that queue once it is empty, or set the kind that it has; it is tried again.",
    ),
    Category.FORBIDDEN: (
        "The broker's user may not publish to it, or declare it.",
        "Grant configure, write and read on `outbox.*`; it is tried again.",
    ),
    Category.REFUSED: (
        "The broker refused this message and no other.",
        "Read its reason in `outbox deferred list`; it is tried again.",
    ),
}


def render() -> str:
    """The page."""
    return page(
        "Errors",
        "Every error raised on purpose is an `OutboxError`; its message is one sentence: what was wanted and what came."
        " Catch by branch, never by leaf. `outbox.errors` has them, where nothing else is said.",
        table(("error", "when", "what to do", "exit code"), _errors()),
        "## Exit codes\n\nOf all three programs. What went wrong is one sentence on standard error.",
        table(
            ("code", "name", "what it means"),
            [(str(number), code(name), what) for number, (name, what) in _EXITS.items()],
        ),
        "## Failures of handlers\n\nWhat a failed attempt counts as; which error is what says"
        " [When a handler fails](../explanation/failures.md).",
        table(("category", "what it is", "what follows"), _of(FailureCategory, _FAILURES)),
        "## Dead letters\n\nWhy an event gets no further attempt, as `outbox dead list` shows it.",
        table(("category", "what it is", "what to do"), _of(DeadCategory, _DEAD)),
        "## Deferred events\n\nWhy an event could not be published though its neighbours were, as"
        " `outbox deferred list` shows it. After `OUTBOX_RELAY_ATTEMPTS` tries it is dead, and waits for"
        " `outbox deferred retry`.",
        table(("category", "what it is", "what to do"), _of(Category, _DEFERRED)),
    )


def _errors() -> Iterator[tuple[str, ...]]:
    # A branch shows only once the module that it is in has been read.
    for name in _PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    yield from _tree(errors.OutboxError, depth=0)


def _tree(kind: type[errors.OutboxError], *, depth: int) -> Iterator[tuple[str, ...]]:
    indent = "&nbsp;" * 4 * depth
    where = "" if kind.__module__ == errors.__name__ else f" ({code(kind.__module__)})"
    when = (kind.__doc__ or "").strip().splitlines()[0].replace("``", "`")
    yield (
        f"{indent}{code(kind.__name__)}{where}",
        when,
        _REMEDIES[kind.__name__],
        str(exits.code_of(kind.__new__(kind))),
    )
    ours = [inner for inner in kind.__subclasses__() if inner.__module__.partition(".")[0] in _PACKAGES]
    for inner in ours:
        yield from _tree(inner, depth=depth + 1)


def _of(kind: type[E], told: Mapping[E, tuple[str, str]]) -> list[tuple[str, ...]]:
    return [(code(str(member.value)), *told[member]) for member in kind]
