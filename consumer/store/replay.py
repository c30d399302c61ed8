"""What operators decide about dead letters: handle them again, let them go, or say whose they are.

The database does it, by functions that ask which tenants the role may decide about: an operator's role needs no
right to write events or letters. Each call is one transaction with one audit row, and bodies never leave the
database for it. What changed in between makes the call fail as a whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import errors as pg

from consumer.store.stored import Connection
from outbox.errors import TransientError

#: Why a letter is refused whose handlers have nothing left to do.
DONE_MEANWHILE: Final = "the ledger says that it was handled meanwhile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A dead letter that stays as it is, and why, in one sentence."""

    id: int
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What a call did: the ids of the dead letters that are resolved now, and those that were refused."""

    ids: tuple[int, ...] = ()
    refused: tuple[Refusal, ...] = ()

    def __add__(self, other: "Resolved") -> "Resolved":
        return Resolved(ids=self.ids + other.ids, refused=self.refused + other.refused)


async def replay(
    connection: Connection, group: str, dead_ids: Sequence[int], *, actor: str, per_s: float | None = None
) -> Resolved:
    """Have those of *dead_ids* that are open letters of *group* handled again, from their first attempt on.

    Each becomes a work row with the reason ``replay``; the process that takes it verifies it like any delivery.
    Refused is what the ledger says is done, what carries no event id, and what a process is handling.

    Args:
        actor: who asks, for the audit.
        per_s: how many become due each second; all at once if not given.

    Raises:
        TransientError: one of them changed meanwhile; nothing was done.
    """
    return await _decide(connection, _REPLAY, (group, list(dead_ids), actor, per_s))


async def discard(connection: Connection, group: str, dead_ids: Sequence[int], *, actor: str) -> Resolved:
    """Let those of *dead_ids* that are open letters of *group* go: never handled, and the keys they held move on.

    A keyed one becomes a void work row, which passes the gate in its turn like the event would have; where
    other handlers of the event wait, their row does that. Refused is what a process is handling.

    Raises:
        TransientError: one of them changed meanwhile; nothing was done.
    """
    return await _decide(connection, _DISCARD, (group, list(dead_ids), actor))


async def own(connection: Connection, group: str, fingerprint: str, *, owner: str | None, actor: str) -> int:
    """Say that *owner*, or nobody, looks after the letters with *fingerprint*, those to come included.

    Returns how many are open; with none that this role may see, nothing was done.
    """
    row = await (await connection.execute(_OWN, (group, fingerprint, owner, actor))).fetchone()
    assert row is not None  # noqa: S101 - a function's result
    found: int = row[0]
    return found


async def _decide(connection: Connection, query: bytes, values: tuple[object, ...]) -> Resolved:
    try:
        rows = await (await connection.execute(query, values, prepare=False)).fetchall()
    except pg.SerializationFailure as error:
        raise TransientError(
            error.diag.message_primary or "dead letters: want them unchanged, got other ones"
        ) from None
    return Resolved(
        ids=tuple(dead_id for dead_id, because in rows if because is None),
        refused=tuple(Refusal(id=dead_id, because=because) for dead_id, because in rows if because is not None),
    )


_REPLAY: Final = b"SELECT * FROM consumer.replay_dead(%s, %s::bigint[], %s, %s::double precision)"
_DISCARD: Final = b"SELECT * FROM consumer.discard_dead(%s, %s::bigint[], %s)"
_OWN: Final = "SELECT consumer.own_dead(%s, %s, %s, %s)"
