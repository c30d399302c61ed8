"""Directory messages: what is believed, and what is refused in one sentence."""

import json
from datetime import UTC, datetime

import pytest

from consumer.store.directory import read
from outbox.errors import Unreadable
from outbox.event import Tier
from outbox.naming import Lane

LANE = Lane(group="billing", tier=Tier.BULK, tenant="Ünïcode.#*")
GOOD = {
    "group": "billing",
    "tier": "bulk",
    "tenant": LANE.tenant,
    "queue": LANE.queue,
    "group_started_at": "2026-06-15T12:00:00Z",
}


def test_an_announcement_names_the_lane_and_the_groups_start() -> None:
    found = read(json.dumps(GOOD).encode(), group="billing")
    assert found.lane == LANE
    assert found.group_started_at == datetime(2026, 6, 15, 12, tzinfo=UTC)
    assert not found.is_gone
    assert read(json.dumps(GOOD | {"is_gone": True}).encode(), group="billing").is_gone


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"group": "shipping"}, "want a lane of group billing"),
        ({"group": "No.Group"}, "group: want"),
        ({"tier": "urgent"}, "want a tier of"),
        ({"tier": 1}, "want text as tier, got int"),
        ({"tenant": None}, "want text as tenant, got NoneType"),
        ({"tenant": ""}, "tenant: want"),
        ({"tenant": "other"}, "want the queue that the tenant's name gives"),
        ({"queue": "outbox.lane.billing.bulk.other"}, "want the queue that the tenant's name gives"),
        ({"group_started_at": "yesterday"}, "want an RFC 3339 time"),
        ({"group_started_at": "2026-06-15T12:00:00"}, "with an offset"),
        ({"is_gone": "yes"}, "want true or false as is_gone, got str"),
    ],
)
def test_anything_else_is_refused_in_one_sentence(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(Unreadable) as refused:
        read(json.dumps(GOOD | change).encode(), group="billing")
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b"null", b"[" * 100_000, b'{"group":"a","group":"b"}'])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(Unreadable, match="directory message: "):
        read(body, group="billing")
