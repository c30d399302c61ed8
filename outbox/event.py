"""What an event is: its values, and the typed events that apps declare.

An event is a fact an app commits beside its business rows. It is immutable, and its payload is
bytes with a content type that are stored, sent and handed over unchanged.
"""

import sys
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Any, ClassVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict

if sys.version_info >= (3, 14):
    from uuid import uuid7
else:
    from uuid_utils.compat import uuid7

JSON = "application/json"


class Tier(IntEnum):
    """How soon an event matters. The number is stored and never changes its meaning."""

    INTERACTIVE = 0
    STANDARD = 1
    BULK = 2

    @property
    def label(self) -> str:
        """The tier's name in queue names, headers, settings and tables: ``interactive``, ..."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """Where an event stands among those with the same tenant, tier and ordering key.

    Numbers rise by one from event to event. A key's first number is any number, marked *is_first*;
    *previous_time* is the ledger time of the predecessor and ``None`` for the first. *is_void*: the event was
    discarded before it could be published, and what is published in its place only moves the number.
    """

    key: str
    number: int
    is_first: bool
    previous_time: datetime | None
    is_void: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One committed event, as the log stores it and the wire carries it. Times are in UTC.

    *ledger_time* is the later of the database's time at emit and the due time; it names the
    consumer's ledger partition and is never set by an app.
    """

    id: UUID
    tenant: str
    tier: Tier
    type: str
    data_version: int
    source: str
    content_type: str
    payload: bytes
    time: datetime
    ledger_time: datetime
    ordering: Ordering | None = None
    idempotency_key: str | None = None
    actor: str | None = None
    causation_id: str | None = None
    correlation_id: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    replay: str | None = None
    """The number of the replay that this copy was published by; None for the first time."""

    @property
    def is_void(self) -> bool:
        """Whether it stands for a discarded event: no handler ever sees it."""
        return self.ordering is not None and self.ordering.is_void


class EventModel(BaseModel):
    """Base of typed events: a pydantic model with a type name and a version.

        class OrderPlaced(EventModel, type="orders.order.placed", version=1):
            order_id: int

    *type* names the event on the wire and must not change; raise *version* when the payload's
    meaning changes. *tier* is the default of events of this type.
    """

    # By default NaN would be sent as null; so it reaches the check that refuses it.
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    event_type: ClassVar[str] = ""
    event_version: ClassVar[int] = 1
    event_tier: ClassVar[Tier] = Tier.STANDARD

    def __init_subclass__(cls, *, type: str = "", version: int = 1, tier: Tier = Tier.STANDARD, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.event_type, cls.event_version, cls.event_tier = type, version, tier


def new_event_id() -> UUID:
    """A UUIDv7: unique anywhere, and later ones sort after earlier ones."""
    return uuid7()
