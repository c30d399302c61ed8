"""The tables of the ``outbox`` schema, as the app's side and the relay name them.

The migrations of the ``outbox`` chain create them; a test holds the two together. They live in a
MetaData of their own, so an app's Alembic autogenerate adds none of them.
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    Uuid,
)

SCHEMA: Final = "outbox"
DEFAULT_GROUP: Final = "default"
TENANT_SETTING: Final = "app.current_tenant_id"
#: Where apps say that they have committed events.
WAKE_CHANNEL: Final = "outbox_wake"

metadata: Final = MetaData(schema=SCHEMA)

_TIME = DateTime(timezone=True)


def _event_columns(*, keyed: bool = False) -> list[Column[object]]:
    """What an event is made of, wherever it is stored: in the log, waiting for its time, or deferred."""
    return [
        Column("id", Uuid, primary_key=keyed, nullable=False),
        Column("bucket", SmallInteger, nullable=False),
        Column("tier", SmallInteger, nullable=False),
        Column("tenant", Text, nullable=False),
        Column("tenant_hash", BigInteger, nullable=False),
        Column("type", Text, nullable=False),
        Column("data_version", Integer, nullable=False),
        Column("source", Text, nullable=False),
        Column("content_type", Text, nullable=False),
        Column("payload", LargeBinary, nullable=False),
        Column("emitted_at", _TIME, nullable=False),
        Column("ledger_at", _TIME, nullable=False),
        Column("ordering_key", Text),
        Column("key_number", BigInteger),
        Column("key_first", Boolean),
        Column("key_previous_at", _TIME),
        Column("idempotency_key", Text),
        Column("actor", Text),
        Column("causation_id", Text),
        Column("correlation_id", Text),
        Column("traceparent", Text),
        Column("tracestate", Text),
    ]


#: The columns above, in order: what a statement that reads or copies an event names.
EVENT_COLUMNS: Final = tuple(column.name for column in _event_columns())

#: The ring log. ``slot``, ``xid``, ``seq`` and both times come from the database's defaults.
event: Final = Table(
    "event",
    metadata,
    Column("slot", SmallInteger, nullable=False),
    Column("xid", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),
    *_event_columns(),
)

#: Events with a due time. They have no ordering key; cancelling deletes here.
scheduled: Final = Table(
    "scheduled",
    metadata,
    *_event_columns(keyed=True),
    Column("due_at", _TIME, nullable=False),
)

#: The last number of each ordering key, and how many the last transaction took; the row lock makes number
#: order and commit order one thing.
ordering: Final = Table(
    "ordering",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("tier", SmallInteger, primary_key=True),
    Column("ordering_key", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("taken", Integer, nullable=False),
    Column("previous_at", _TIME),
    Column("last_at", _TIME, nullable=False),
)

#: Idempotency keys: the same key and payload is one event.
key: Final = Table(
    "key",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("idempotency_key", Text, primary_key=True),
    Column("fingerprint", LargeBinary, nullable=False),
    Column("event_id", Uuid, nullable=False),
    Column("expires_at", _TIME, nullable=False),
)

#: Row-level failures of one group that wait for a retry, dead ones, and voids in place of those discarded.
deferred: Final = Table(
    "deferred",
    metadata,
    Column("group_name", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("category", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("due_at", _TIME, nullable=False),
    Column("first_failed_at", _TIME, nullable=False),
    Column("token", BigInteger),
    *_event_columns(keyed=True),
)

#: The groups that read the log.
consumer_group: Final = Table(
    "consumer_group",
    metadata,
    Column("group_name", Text, primary_key=True),
    Column("started_at", _TIME, nullable=False),
)
