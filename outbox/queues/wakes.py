"""Telling consumers which queues to look at: notifications, and what follows if one is lost is a later look.

They are sent after a commit, never in it: a transaction that notifies takes a lock of the whole cluster as it commits.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from outbox.shell.severed import Connection

#: Where it is told which queues have something; and where consumers call relays for a group's lanes.
WAKE_CHANNEL: Final = "outbox_queue"
ROLL_CALL_CHANNEL: Final = "outbox_roll_call"

_PAYLOAD_BYTES_MAX: Final = 7900  # PostgreSQL takes just under 8,000
# Nobody waits for this to reach the disk: after a crash of the server nobody listens any more.
_NOTIFY: Final = """
SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, payload) FROM unnest(%s::text[]) AS p (payload)
"""


class WakeKind(Enum):
    """What happened to a queue. The values are what is written before its number."""

    NEW = ""  # it has new messages, at its end
    BACK = "b"  # some came back to their old places
    GONE = "g"  # it was deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """Something happened to the queue of this number."""

    queue_id: int
    kind: WakeKind = WakeKind.NEW


async def wake(connection: Connection, wakes: Iterable[Wake]) -> None:
    """Tell every consumer; *connection* is in no transaction."""
    payloads = list(written(wakes))
    if payloads:
        await connection.execute(_NOTIFY, (WAKE_CHANNEL, payloads))


async def call_roll(connection: Connection, group: str) -> None:
    """Ask every relay for the lanes of *group*."""
    await connection.execute(_NOTIFY, (ROLL_CALL_CHANNEL, [group]))


def written(wakes: Iterable[Wake]) -> Iterator[str]:
    """*wakes* as few texts, none longer than a notification may be."""
    line = ""
    for one in dict.fromkeys(wakes):
        word = f"{one.kind.value}{one.queue_id}"
        if len(line) + len(word) >= _PAYLOAD_BYTES_MAX:
            yield line
            line = ""
        line = f"{line} {word}" if line else word
    if line:
        yield line


def read(payload: str) -> Iterator[Wake]:
    """What was written; words that say nothing to us are passed over: anybody may notify."""
    for word in payload.split():
        kind = next((kind for kind in (WakeKind.BACK, WakeKind.GONE) if word.startswith(kind.value)), WakeKind.NEW)
        number = word.removeprefix(kind.value)
        if number.isascii() and number.isdigit():
            yield Wake(queue_id=int(number), kind=kind)
