"""One event in this process's hands: what it is, where it came from, and so how it is settled."""

from dataclasses import dataclass, field
from typing import Self
from uuid import UUID

from consumer.decide.delivery import Refused, open_envelope
from consumer.ports import Receipt
from consumer.store import stored as stored_message
from consumer.store.stored import Stored
from consumer.store.work import Reason, WorkRow
from outbox.event import Event
from outbox.naming import Lane
from outbox.wire import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class FromWork:
    """It is a work row that *owner*, this process's incarnation, has claimed."""

    owner: UUID
    row: WorkRow


@dataclass(slots=True, eq=False, kw_only=True)
class Item:
    """An unsettled event. *ident* is this process's own number for it; *arrived_at* is on the monotonic clock.

    *envelope* is the event, or why it cannot be read. *is_doubted*: it was in a process's hands before, which may have
    died of it. *is_alone*: this process runs nothing else, and ends with it. *troubles* counts how often it was given
    back because the database failed, *interruptions* how often its handler lost its connection.
    """

    ident: int
    lane: Lane
    message: Message
    envelope: Event | Refused
    source: Receipt | FromWork
    arrived_at: float
    is_doubted: bool = False
    is_alone: bool = False
    troubles: int = 0
    interruptions: int = 0

    event_id: UUID | None = field(init=False)
    """The event's id, if the envelope could be read."""
    owner: UUID | None = field(init=False)
    """Who owns its work row, if it comes from one."""
    row: WorkRow | None = field(init=False)
    """Its work row, if it comes from one."""

    def __post_init__(self) -> None:
        # Asked for a dozen times on an event's way.
        self.event_id = self.envelope.id if isinstance(self.envelope, Event) else None
        from_work = self.source if isinstance(self.source, FromWork) else None
        self.owner = None if from_work is None else from_work.owner
        self.row = None if from_work is None else from_work.row

    @property
    def handlers(self) -> tuple[str, ...] | None:
        """The names of the handlers not yet done; None is every one of its type, and a void has none."""
        if isinstance(self.envelope, Event) and self.envelope.is_void:
            return ()
        return None if self.row is None else self.row.handlers

    @property
    def is_replay(self) -> bool:
        """Whether an operator wants a dead letter handled again."""
        return self.row is not None and self.row.reason is Reason.REPLAY

    @classmethod
    def of_row(cls, row: WorkRow, *, ident: int, payload_bytes_max: int, now: float, is_alone: bool = False) -> Self:
        """*row*, which was claimed, as an item."""
        assert row.owner is not None  # noqa: S101 - it was claimed
        stored = row.stored
        lane = Lane(group=row.group, tier=stored.tier, tenant=stored.tenant)
        return cls(
            ident=ident,
            lane=lane,
            message=stored.message,
            envelope=open_envelope(stored.message, lane, payload_bytes_max=payload_bytes_max),
            source=FromWork(owner=row.owner, row=row),
            arrived_at=now,
            is_doubted=row.is_marked,
            is_alone=is_alone,
        )

    def stored(self) -> Stored:
        """It, as work rows and dead letters keep it."""
        if isinstance(self.envelope, Event):
            return stored_message.of_event(self.envelope, self.message)
        return stored_message.unreadable(self.message, tier=self.lane.tier, tenant=self.lane.tenant)
