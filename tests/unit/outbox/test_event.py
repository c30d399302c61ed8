from uuid import RFC_4122

import pytest
from pydantic import ValidationError

from outbox.event import EventModel, Tier, new_event_id


class Placed(EventModel, type="shop.placed", version=3, tier=Tier.BULK):
    order_id: int


def test_a_typed_event_knows_its_type_version_and_tier() -> None:
    assert (Placed.event_type, Placed.event_version, Placed.event_tier) == ("shop.placed", 3, Tier.BULK)


def test_a_subclass_takes_no_type_from_its_parent() -> None:
    """Two classes of one type would be read back as either."""

    class Special(Placed):
        pass

    assert Special.event_type == ""


def test_an_event_is_a_fact_and_cannot_be_changed() -> None:
    event = Placed(order_id=1)
    with pytest.raises(ValidationError):
        event.order_id = 2  # type: ignore[misc]  # the mistake is the test


def test_ids_are_version_7_and_rise() -> None:
    ids = [new_event_id() for _ in range(1_000)]

    assert all(event_id.version == 7 and event_id.variant == RFC_4122 for event_id in ids)
    assert len(set(ids)) == 1_000
    assert ids == sorted(ids)


def test_the_tiers_stored_numbers_never_change() -> None:
    assert {tier.label: int(tier) for tier in Tier} == {"interactive": 0, "standard": 1, "bulk": 2}
