"""Every name that is derived from a tenant, a group or a tier, and the hash that places a tenant.

One function turns a tenant id into the part of a name, so that no two tenants share one, none can
reach another's queue, and every name stays inside AMQP's 255 bytes.
"""

import hashlib
import re
from typing import Final, NamedTuple
from urllib.parse import quote

from outbox.errors import ConfigError, InvalidEvent, TenantRequired
from outbox.event import Tier

BUCKETS: Final = 64
TENANT_CHARS_MAX: Final = 200
_ENCODED_BYTES_MAX: Final = 100
_GROUP: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_TYPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}")


class Lane(NamedTuple):
    """One queue: group x tier x tenant.

    A tuple, since lanes are looked up for every event, and a dataclass is hashed and compared by Python code.
    """

    group: str
    tier: Tier
    tenant: str

    @property
    def routing_key(self) -> str:
        """What the relay publishes with; groups hold no dot, so ``group.#`` is all of one group."""
        return f"{self.group}.{self.tier.label}.{tenant_name(self.tenant)}"

    @property
    def queue(self) -> str:
        """The queue's name, at most 255 bytes."""
        return f"outbox.lane.{self.routing_key}"


def check_tenant(tenant: object) -> str:
    """Return *tenant* if it can be one: 1 to 200 characters of any Unicode text without NUL.

    Raises:
        TenantRequired: it is empty.
        InvalidEvent: it is no text, too long, or holds what neither PostgreSQL nor UTF-8 can store.
    """
    if not isinstance(tenant, str):
        raise InvalidEvent(f"tenant: want text of 1..{TENANT_CHARS_MAX} characters, got {type(tenant).__name__}")
    if not tenant:
        raise TenantRequired(f"tenant: want text of 1..{TENANT_CHARS_MAX} characters, got an empty one")
    if len(tenant) > TENANT_CHARS_MAX:
        raise InvalidEvent(f"tenant: want at most {TENANT_CHARS_MAX} characters, got {len(tenant)}")
    return check_text("tenant", tenant)


def check_text(name: str, text: str) -> str:
    """Return *text* if PostgreSQL and UTF-8 can hold it, else raise InvalidEvent naming *name*."""
    if "\0" in text:
        raise InvalidEvent(f"{name}: want text without NUL characters, got one at position {text.index(chr(0))}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidEvent(f"{name}: want Unicode text, got a lone surrogate at position {error.start}") from None
    return text


def check_group(group: str) -> str:
    """Return *group* if it can name one: lower-case letters, digits, ``_`` and ``-``, at most 63."""
    if not _GROUP.fullmatch(group):
        raise ConfigError(f"group: want 1..63 of a-z, 0-9, _ and -, got {group[:80]!r}")
    return group


def check_type(event_type: str) -> str:
    """Return *event_type* if it can name a type: letters, digits and ``._:/-``, at most 200."""
    if not _TYPE.fullmatch(event_type):
        raise InvalidEvent(f"event type: want 1..200 of letters, digits and ._:/-, got {event_type[:80]!r}")
    return event_type


def tenant_hash(tenant: str) -> int:
    """BLAKE2b-64 of the UTF-8 tenant id as a signed 64-bit integer. Stored; never changes."""
    return int.from_bytes(hashlib.blake2b(tenant.encode(), digest_size=8).digest(), "big", signed=True)


def bucket_of(hashed: int) -> int:
    """The unit of relay ownership that a tenant's hash belongs to: 0..63."""
    return hashed % BUCKETS


def tenant_name(tenant: str) -> str:
    """The part of a name that stands for *tenant*: encoded up to 100 bytes, else a digest.

    Letters, digits and ``_.-`` stand for themselves and every other byte is ``+`` and two hex digits: percent-encoding
    with another mark, since the Python clients' AMQP library refuses ``%``, ``~`` and ``=`` in a queue's name. A digest
    begins with ``@``, which no encoded text holds, so the two never meet.
    """
    encoded = quote(tenant, safe="").replace("~", "%7E").replace("%", "+")
    if len(encoded) <= _ENCODED_BYTES_MAX:
        return encoded
    return "@" + hashlib.blake2b(tenant.encode(), digest_size=32).hexdigest()
