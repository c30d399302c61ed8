"""The rows that emitted events become, written in one transaction in an order that cannot deadlock.

Idempotency keys first, then ordering counters, each sorted, then the events in the order they were
emitted. A transaction holds none of the later locks while it waits for an earlier one.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Final
from uuid import UUID

from sqlalchemy import Connection, DateTime, Interval, Uuid, bindparam, case, func, literal_column, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import ProgrammingError, StatementError

from outbox import schema, strict_json
from outbox.draft import Body, Envelope, is_json
from outbox.errors import IdempotencyConflict, SchemaMissing
from outbox.event import Ordering, Tier
from outbox.naming import bucket_of, tenant_hash

_TIME = DateTime(timezone=True)
_NOW = func.statement_timestamp()
# Undefined table, schema, column or function: the chain was not applied, or not to its end.
_NOT_MIGRATED: Final = frozenset({"42P01", "3F000", "42703", "42883"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One event to write. *key_retention* is how long its idempotency key is remembered."""

    id: UUID
    source: str
    key_retention: timedelta
    envelope: Envelope
    body: Body

    @property
    def tier(self) -> Tier:
        """The tier it was emitted with, else its type's."""
        return self.body.tier if self.envelope.tier is None else self.envelope.tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The id that stands for a record; a duplicate's is the first event's."""

    id: UUID
    is_duplicate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """An event's number in its key, and the database's time that number was given."""

    ordering: Ordering
    at: datetime


_Key = tuple[str, str]
_Counted = tuple[str, int, str]

_insert_key = insert(schema.key).values(expires_at=_NOW + bindparam("retention", type_=Interval()))
_is_expired = schema.key.c.expires_at <= _NOW
# A key in use is left as it is; the update is what makes the statement wait for, and return, another's row.
_CLAIM_KEYS: Final = _insert_key.on_conflict_do_update(
    index_elements=[schema.key.c.tenant, schema.key.c.idempotency_key],
    set_={
        name: case((_is_expired, _insert_key.excluded[name]), else_=schema.key.c[name])
        for name in ("fingerprint", "event_id", "expires_at")
    },
).returning(schema.key.c.tenant, schema.key.c.idempotency_key, schema.key.c.fingerprint, schema.key.c.event_id)

_insert_counter = insert(schema.ordering).values(
    # From the sequence that events draw from too, so a key that was purged starts above where it ended.
    number=literal_column("nextval('outbox.event_seq')") + bindparam("more"),
    last_at=func.clock_timestamp(),
)
_TAKE_NUMBERS: Final = _insert_counter.on_conflict_do_update(
    index_elements=[schema.ordering.c.tenant, schema.ordering.c.tier, schema.ordering.c.ordering_key],
    set_={
        "number": schema.ordering.c.number + _insert_counter.excluded.taken,
        "taken": _insert_counter.excluded.taken,
        "previous_at": schema.ordering.c.last_at,
        "last_at": func.clock_timestamp(),  # read once the lock is held: a key's times rise with its numbers
    },
).returning(*schema.ordering.c)

_given_or_now = func.coalesce(bindparam("at", type_=_TIME), _NOW)
_ADD_EVENTS: Final = insert(schema.event).values(emitted_at=_given_or_now, ledger_at=_given_or_now)

_due = func.coalesce(bindparam("due", type_=_TIME), _NOW + bindparam("wait", type_=Interval()))
_ADD_SCHEDULED: Final = insert(schema.scheduled).values(
    emitted_at=_NOW, ledger_at=func.greatest(_NOW, _due), due_at=_due
)

# The idempotency key goes too: what was cancelled may be emitted again.
_CANCEL: Final = text(
    """
    WITH gone AS (
        DELETE FROM outbox.scheduled WHERE id = :id AND tenant = :tenant RETURNING tenant, idempotency_key
    ), freed AS (
        DELETE FROM outbox.key k USING gone
        WHERE k.tenant = gone.tenant AND k.idempotency_key = gone.idempotency_key AND k.event_id = :id
    )
    SELECT count(*) FROM gone
    """
).bindparams(bindparam("id", type_=Uuid()))


def write(connection: Connection, records: Sequence[Record]) -> list[Written]:
    """Write *records* and return what became of each, in the same order.

    Raises:
        IdempotencyConflict: a key was used before with another payload; nothing else was written.
        SchemaMissing: the database has not been migrated.
    """
    with _own_errors():
        claimed = _claim_keys(connection, records)
        written = [_settled(record, claimed) for record in records]
        new = [record for record, became in zip(records, written, strict=True) if not became.is_duplicate]
        logged = [record for record in new if record.envelope.due is None]
        places = _take_numbers(connection, logged)
        if logged:
            connection.execute(_ADD_EVENTS, [_event_row(record, places.get(record.id)) for record in logged])
        scheduled = [_scheduled_row(record) for record in new if record.envelope.due is not None]
        if scheduled:
            connection.execute(_ADD_SCHEDULED, scheduled)
    return written


def cancel(connection: Connection, *, tenant: str, event_id: UUID) -> bool:
    """Delete the scheduled event *event_id* of *tenant*, and its idempotency key; say whether it was there."""
    with _own_errors():
        return bool(connection.execute(_CANCEL, {"id": event_id, "tenant": tenant}).scalar_one())


def _claim_keys(connection: Connection, records: Sequence[Record]) -> Mapping[_Key, tuple[UUID, bytes]]:
    """Return which event each idempotency key stands for, and its fingerprint."""
    first: dict[_Key, Record] = {}
    for record in records:
        if record.envelope.idempotency_key is not None:
            first.setdefault((record.envelope.tenant, record.envelope.idempotency_key), record)
    if not first:
        return {}
    rows = [
        {
            "tenant": tenant,
            "idempotency_key": key,
            "fingerprint": _fingerprint(record.body),
            "event_id": record.id,
            "retention": record.key_retention,
        }
        for (tenant, key), record in sorted(first.items(), key=lambda item: item[0])
    ]
    found = connection.execute(_CLAIM_KEYS, rows)
    return {(row.tenant, row.idempotency_key): (row.event_id, bytes(row.fingerprint)) for row in found}


def _settled(record: Record, claimed: Mapping[_Key, tuple[UUID, bytes]]) -> Written:
    key = record.envelope.idempotency_key
    if key is None:
        return Written(id=record.id, is_duplicate=False)
    event_id, fingerprint = claimed[record.envelope.tenant, key]
    if event_id == record.id:
        return Written(id=event_id, is_duplicate=False)
    if fingerprint != _fingerprint(record.body):
        raise IdempotencyConflict(
            f"idempotency key {key!r} of {record.body.type}: want the payload it was first used with, got another"
        )
    return Written(id=event_id, is_duplicate=True)


def _fingerprint(body: Body) -> bytes:
    """Equal for equal types, versions and payloads; JSON is compared by value, other payloads by their bytes."""
    payload = body.payload
    if is_json(body.content_type):
        payload = strict_json.canonical(payload)
    digest = blake2b(digest_size=32)
    for part in (body.type.encode(), str(body.data_version).encode(), body.content_type.encode(), payload):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def _take_numbers(connection: Connection, records: Sequence[Record]) -> Mapping[UUID, _Place]:
    """Draw each keyed record's number: consecutive in emission order, and held until the transaction ends."""
    keyed = [(counted, record) for record in records if (counted := _counted(record)) is not None]
    if not keyed:
        return {}
    taken = Counter(counted for counted, _ in keyed)
    rows = [
        {"tenant": tenant, "tier": tier, "ordering_key": key, "taken": count, "more": count - 1}
        for (tenant, tier, key), count in sorted(taken.items())
    ]
    following: dict[_Counted, _Place] = {}
    for row in connection.execute(_TAKE_NUMBERS, rows):
        ordering = Ordering(
            key=row.ordering_key,
            number=row.number - row.taken + 1,
            is_first=row.previous_at is None,
            previous_time=row.previous_at,
        )
        following[row.tenant, row.tier, row.ordering_key] = _Place(ordering=ordering, at=row.last_at)
    places = {}
    for counted, record in keyed:
        place = places[record.id] = following[counted]
        after = replace(place.ordering, number=place.ordering.number + 1, is_first=False, previous_time=place.at)
        following[counted] = replace(place, ordering=after)
    return places


def _counted(record: Record) -> _Counted | None:
    key = record.envelope.ordering_key
    return None if key is None else (record.envelope.tenant, int(record.tier), key)


def _event_row(record: Record, place: _Place | None) -> dict[str, object]:
    ordering = None if place is None else place.ordering
    return {
        **_common_row(record),
        "at": None if place is None else place.at,
        "ordering_key": None if ordering is None else ordering.key,
        "key_number": None if ordering is None else ordering.number,
        "key_first": None if ordering is None else ordering.is_first,
        "key_previous_at": None if ordering is None else ordering.previous_time,
    }


def _scheduled_row(record: Record) -> dict[str, object]:
    due = record.envelope.due
    return {
        **_common_row(record),
        "due": due if isinstance(due, datetime) else None,
        "wait": due if isinstance(due, timedelta) else None,
    }


def _common_row(record: Record) -> dict[str, object]:
    envelope, body, trail = record.envelope, record.body, record.envelope.trail
    hashed = tenant_hash(envelope.tenant)
    return {
        "id": record.id,
        "bucket": bucket_of(hashed),
        "tier": int(record.tier),
        "tenant": envelope.tenant,
        "tenant_hash": hashed,
        "type": body.type,
        "data_version": body.data_version,
        "source": record.source,
        "content_type": body.content_type,
        "payload": body.payload,
        "idempotency_key": envelope.idempotency_key,
        "actor": trail.actor,
        "causation_id": trail.causation_id,
        "correlation_id": trail.correlation_id,
        "traceparent": trail.traceparent,
        "tracestate": trail.tracestate,
    }


@contextmanager
def _own_errors() -> Iterator[None]:
    """Keep payloads out of what the database's errors say, and name the one that an operator can end."""
    try:
        yield
    except StatementError as error:
        error.hide_parameters = True
        if isinstance(error, ProgrammingError) and _sqlstate(error) in _NOT_MIGRATED:
            raise SchemaMissing(
                "database: want the outbox schema (run `outbox migrate`), got none or an older one"
            ) from error
        raise


def _sqlstate(error: ProgrammingError) -> str | None:
    return getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
