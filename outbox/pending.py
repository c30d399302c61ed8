"""What a session has emitted and not yet committed, kept right through savepoints, rollbacks and commits.

Rows are written in ``before_commit``, after a flush: at emit, or in the flush itself, a number could be
drawn before the business row it is about is locked, and no relay could restore the order.

The hooks stand on SQLAlchemy's ``Session`` class and do nothing for a session that never emitted.
"""

import logging
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session, SessionTransaction

from outbox import rows
from outbox.draft import Body, Envelope, name_of
from outbox.errors import InvalidEvent, OutboxError
from outbox.sessions import is_autocommit
from outbox.waker import Waker

_INFO: Final = "fairpost.pending"
_AUTOCOMMIT: Final = "emit: want a session with transactions, got one in AUTOCOMMIT"
log: Final = logging.getLogger("outbox")


class Handle:
    """One emit's event."""

    __slots__ = ("_id", "_is_duplicate", "_is_known")

    def __init__(self, event_id: UUID, *, is_known: bool) -> None:
        self._id = event_id
        self._is_known = is_known
        self._is_duplicate = False

    @property
    def id(self) -> UUID:
        """The event's id; with an idempotency key, that of the first event with the key, known after commit.

        Raises:
            OutboxError: an idempotency key was given and nothing is committed yet.
        """
        self._check_known("id")
        return self._id

    @property
    def is_duplicate(self) -> bool:
        """Whether the idempotency key stood for an earlier event, so that this emit added none; known after commit.

        Raises:
            OutboxError: an idempotency key was given and nothing is committed yet.
        """
        self._check_known("is_duplicate")
        return self._is_duplicate

    def settle(self, written: rows.Written) -> None:
        """Take what the commit made of it."""
        self._id, self._is_duplicate, self._is_known = written.id, written.is_duplicate, True

    def _check_known(self, name: str) -> None:
        if not self._is_known:
            raise OutboxError(f"{name}: want a commit first, since an idempotency key decides it, got none yet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What the emitting ``Outbox`` gives to each of its events, and where in the session they go."""

    source: str
    key_retention: timedelta
    bind: Engine | Connection
    waker: Waker | None


@dataclass(slots=True, kw_only=True, eq=False)
class Emission:
    """An event that waits for its transaction to commit. *owner* is the innermost transaction it would vanish with."""

    owner: SessionTransaction
    id: UUID
    origin: Origin
    envelope: Envelope
    body: Body | Callable[[], Body]
    handle: Handle


@dataclass(slots=True, kw_only=True, eq=False)
class Cancellation:
    """The wish to forget an emission that waits in the same transaction."""

    owner: SessionTransaction
    id: UUID


@dataclass(slots=True, kw_only=True, eq=False)
class Pending:
    """One session's emissions in its open transaction.

    *commits_begun* counts transactions of the session, savepoints included, that are being committed now;
    *released* is the savepoint whose commit was the last to succeed.
    *adrift* names emissions whose savepoint was closed, which is a loss only if the whole session was.
    """

    emissions: list[Emission] = field(default_factory=list)
    cancellations: list[Cancellation] = field(default_factory=list)
    written: list[tuple[Handle, rows.Written]] = field(default_factory=list)
    to_wake: set[tuple[Waker, Engine]] = field(default_factory=set)
    adrift: list[str] = field(default_factory=list)
    autocommit_engines: set[Engine] = field(default_factory=set)
    commits_begun: int = 0
    released: SessionTransaction | None = None
    is_written: bool = False
    has_failed: bool = False

    def __del__(self) -> None:
        # A session that nobody closed; SQLAlchemy has no event for it.
        if not sys.is_finalizing():
            self.warn_if_lost()

    def warn_if_lost(self) -> None:
        """Log the types of what was emitted and neither committed nor rolled back."""
        lost = Counter(self.adrift + [name_of(emission.body) for emission in self.emissions])
        if lost:
            types = ", ".join(f"{count} {name}" for name, count in lost.items())
            log.warning("session ended without commit or rollback, its events are lost: %s", types)

    def roll_back(self) -> None:
        """Forget what was emitted. That the rows were written, or could not be, stays true until the end."""
        for held in (self.emissions, self.cancellations, self.written, self.to_wake, self.adrift):
            held.clear()
        self.commits_begun = 0
        self.released = None

    def end(self) -> None:
        """Be ready for the session's next transaction."""
        self.warn_if_lost()
        self.roll_back()
        self.autocommit_engines.clear()
        self.is_written = self.has_failed = False

    def forget(self, owner: SessionTransaction) -> list[Emission]:
        """Drop and return what *owner*, the innermost transaction, took with it."""
        start = _start_of(owner, self.emissions)
        gone = self.emissions[start:]
        del self.emissions[start:]
        del self.cancellations[_start_of(owner, self.cancellations) :]
        return gone

    def hand_over(self, owner: SessionTransaction, heir: SessionTransaction) -> None:
        """Give what *owner*, the innermost transaction, held to the one it was released into."""
        for emission in self.emissions[_start_of(owner, self.emissions) :]:
            emission.owner = heir
        for wish in self.cancellations[_start_of(owner, self.cancellations) :]:
            wish.owner = heir

    def is_waiting(self, event_id: UUID, *, tenant: str) -> bool:
        """Whether a scheduled event of that id and *tenant* waits here and is not cancelled."""
        return any(
            emission.id == event_id and emission.envelope.tenant == tenant and emission.envelope.due is not None
            for emission in self.emissions
        ) and not any(wish.id == event_id for wish in self.cancellations)


def pending_of(session: Session) -> Pending:
    """Return what *session* has pending; there is always one."""
    found = session.info.get(_INFO)
    if not isinstance(found, Pending):
        found = session.info[_INFO] = Pending()
    return found


def open_transaction(session: Session, bind: Engine | Connection) -> SessionTransaction:
    """Return the innermost transaction that what is emitted now would vanish with; one is begun if there is none.

    Raises:
        InvalidEvent: there can be none, or the session's commit has already written its events.
    """
    pending = pending_of(session)
    if bind.engine in pending.autocommit_engines:
        raise InvalidEvent(_AUTOCOMMIT)
    if pending.is_written:
        raise InvalidEvent(
            "emit: want a transaction before its commit, got one whose events are written; emit in before_flush, "
            "or in a before_commit hook that stands before ours"
        )
    if not session.in_transaction():
        if not session.autobegin:
            raise InvalidEvent("emit: want a transaction, got none: this session has autobegin off, so call begin()")
        session.begin()
    found = session.get_nested_transaction() or session.get_transaction()
    assert found is not None  # noqa: S101 (it was begun above)
    return found


def install_hooks() -> None:
    """Have every session write what it emits. Safe to repeat."""
    for name, hook in (
        ("after_begin", _after_begin),
        ("before_commit", _before_commit),
        ("after_commit", _after_commit),
        ("after_rollback", _after_rollback),
        ("after_transaction_end", _after_transaction_end),
    ):
        if not event.contains(Session, name, hook):
            event.listen(Session, name, hook)


def _after_begin(session: Session, _transaction: SessionTransaction, connection: Connection) -> None:
    if not is_autocommit(connection):
        return
    pending = pending_of(session)
    pending.autocommit_engines.add(connection.engine)
    # Now, before the first business row: each would commit by itself.
    if any(emission.origin.bind.engine is connection.engine for emission in pending.emissions):
        raise InvalidEvent(_AUTOCOMMIT)


def _before_commit(session: Session) -> None:
    pending = pending_of(session)
    pending.commits_begun += 1
    if not session.in_nested_transaction():
        _write(session, pending)


def _after_commit(session: Session) -> None:
    pending = pending_of(session)
    pending.commits_begun = max(0, pending.commits_begun - 1)
    nested = session.get_nested_transaction()
    if nested is not None:
        pending.hand_over(nested, _boundary_above(nested))
        pending.released = nested
        return
    for handle, written in pending.written:
        handle.settle(written)
    for waker, engine in pending.to_wake:
        waker.wake(engine)
    pending.adrift.clear()


def _after_rollback(session: Session) -> None:
    pending = pending_of(session)
    pending.commits_begun = 0
    rolled_back = session.get_nested_transaction()
    if rolled_back is not None:
        pending.forget(rolled_back)
    else:
        pending.roll_back()


def _after_transaction_end(session: Session, transaction: SessionTransaction) -> None:
    pending = session.info.get(_INFO)
    if not isinstance(pending, Pending):
        return
    if transaction.nested:
        pending.adrift += [name_of(emission.body) for emission in pending.forget(transaction)]
        if pending.commits_begun and pending.released is transaction and not session.in_nested_transaction():
            # The app committed the outermost transaction while savepoints were open: SQLAlchemy called
            # before_commit first, and releases them now. This was the last.
            _write(session, pending)
    elif transaction.parent is None:
        pending.end()


def _write(session: Session, pending: Pending) -> None:
    if pending.has_failed:
        raise OutboxError("commit: want a rollback first, since the events of this transaction could not be written")
    try:
        session.flush()
        emissions = _built(session, pending)
        for connection, group in _by_connection(session, emissions):
            records = [_record(emission) for emission in group]
            became = rows.write(connection, records)
            pending.written += zip([emission.handle for emission in group], became, strict=True)
            pending.to_wake |= _to_wake(connection, group)
    except BaseException:
        # A second commit would draw numbers anew, or commit the business rows alone.
        pending.has_failed = True
        raise
    pending.is_written = True
    pending.emissions.clear()
    pending.cancellations.clear()


def _built(session: Session, pending: Pending) -> Sequence[Emission]:
    """Run the payloads that wait for the flush. They may emit and change rows themselves, so until none is left."""
    while waiting := [emission for emission in pending.emissions if not isinstance(emission.body, Body)]:
        for emission in waiting:
            if not isinstance(emission.body, Body):
                emission.body = emission.body()
        session.flush()
    cancelled = {wish.id for wish in pending.cancellations}
    return [emission for emission in pending.emissions if emission.id not in cancelled]


def _by_connection(session: Session, emissions: Sequence[Emission]) -> Sequence[tuple[Connection, Sequence[Emission]]]:
    binds = dict.fromkeys(emission.origin.bind for emission in emissions)
    connections = {bind: session.connection(bind_arguments={"bind": bind}) for bind in binds}
    groups: dict[Connection, list[Emission]] = {connection: [] for connection in connections.values()}
    for emission in emissions:
        groups[connections[emission.origin.bind]].append(emission)
    return list(groups.items())


def _to_wake(connection: Connection, group: Sequence[Emission]) -> set[tuple[Waker, Engine]]:
    """Who is to say what was committed on *connection*; of what is due later there is nothing to say yet."""
    return {
        (emission.origin.waker, connection.engine)
        for emission in group
        if emission.origin.waker is not None and emission.envelope.due is None
    }


def _record(emission: Emission) -> rows.Record:
    assert isinstance(emission.body, Body)  # noqa: S101 (_built saw to it)
    return rows.Record(
        id=emission.id,
        source=emission.origin.source,
        key_retention=emission.origin.key_retention,
        envelope=emission.envelope,
        body=emission.body,
    )


def _start_of(owner: SessionTransaction, held: Sequence[Emission | Cancellation]) -> int:
    """Where what the innermost transaction holds begins: at the end, for nothing is emitted outside of it meanwhile."""
    start = len(held)
    while start and held[start - 1].owner is owner:
        start -= 1
    return start


def _boundary_above(nested: SessionTransaction) -> SessionTransaction:
    found = nested.parent
    while found is not None and not found.nested and found.parent is not None:
        found = found.parent  # a flush's own marker
    assert found is not None  # noqa: S101 (a savepoint stands in a transaction)
    return found
