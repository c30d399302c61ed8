import pytest

from outbox.errors import ConfigError, InvalidEvent, TenantRequired
from outbox.event import Tier
from outbox.naming import Lane, bucket_of, check_group, check_tenant, check_type, tenant_hash, tenant_name


def test_a_short_tenant_can_be_read_in_its_names() -> None:
    lane = Lane(group="billing", tier=Tier.BULK, tenant="acme corp")

    assert lane.routing_key == "billing.bulk.acme+20corp"
    assert lane.queue == "outbox.lane.billing.bulk.acme+20corp"


def test_a_tenant_with_a_line_end_has_a_lane_of_its_own() -> None:
    """RabbitMQ strips CR and LF from names, and then the two would share a queue."""
    assert [tenant_name(tenant) for tenant in ("a", "a\n", "a\r\n")] == ["a", "a+0A", "a+0D+0A"]


def test_a_long_tenant_is_a_digest_that_no_other_tenant_can_spell() -> None:
    long = "ü" * 200
    assert tenant_name(long).startswith("@")
    assert tenant_name(tenant_name(long)) != tenant_name(long)
    assert tenant_name("x" * 100) == "x" * 100
    assert tenant_name("x" * 101).startswith("@")


def test_the_hash_that_places_a_tenant_never_changes() -> None:
    """Stored rows and running relays agree on it."""
    assert (tenant_hash("acme"), bucket_of(tenant_hash("acme"))) == (3469556990258029185, 1)
    assert (tenant_hash("é"), bucket_of(tenant_hash("é"))) == (-3811523526868657873, 47)


@pytest.mark.parametrize(
    ("tenant", "sentence"),
    [
        (7, r"^tenant: want text of 1\.\.200 characters, got int$"),
        ("x" * 201, r"^tenant: want at most 200 characters, got 201$"),
        ("a\0b", r"^tenant: want text without NUL characters, got one at position 1$"),
        ("a\ud800", r"^tenant: want Unicode text, got a lone surrogate at position 1$"),
    ],
)
def test_what_cannot_be_a_tenant_is_refused_in_one_sentence(tenant: object, sentence: str) -> None:
    with pytest.raises(InvalidEvent, match=sentence):
        check_tenant(tenant)


def test_an_empty_tenant_is_none_at_all() -> None:
    """PostgreSQL resets a custom setting to the empty text, so it must never be a tenant."""
    with pytest.raises(TenantRequired):
        check_tenant("")


@pytest.mark.parametrize("group", ["", "A", "a.b", "a b", "-a", "a" * 64, "a\n", "ü"])
def test_a_group_is_plain_and_holds_no_dot(group: str) -> None:
    with pytest.raises(ConfigError, match=r"^group: want 1\.\.63 of"):
        check_group(group)


@pytest.mark.parametrize("event_type", ["", ".a", "a b", "a\n", "ü", "a" * 201])
def test_a_type_is_plain(event_type: str) -> None:
    with pytest.raises(InvalidEvent, match=r"^event type: want 1\.\.200 of"):
        check_type(event_type)
    assert check_type("shop.order.placed/v2:x_y-z") == "shop.order.placed/v2:x_y-z"
