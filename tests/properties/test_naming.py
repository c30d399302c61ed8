"""Names never collide, never reach another's queue, and always fit."""

from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from outbox.event import Tier
from outbox.naming import BUCKETS, Lane, bucket_of, check_tenant, tenant_hash, tenant_name
from tests.support.events import tenants

_SHORT_BYTES_MAX = 255
_LONGEST_GROUP = "g" * 63
lanes = st.builds(
    Lane,
    group=st.sampled_from(["a", "b", "a-b", _LONGEST_GROUP]),
    tier=st.sampled_from(Tier),
    tenant=tenants
    | st.sampled_from(["a", "a\n", "a\r", "a.b", "+61", "%61", "~", "+7E", "=", "@", "A", "á", "a\u0301", "#", "*"]),
)


@given(lanes, lanes)
def test_two_lanes_never_share_a_name(one: Lane, other: Lane) -> None:
    """RabbitMQ strips CR and LF from names, so `a` and `a\\n` must differ in more than those."""
    assert (one.queue == other.queue) == (one == other)
    assert (one.routing_key == other.routing_key) == (one == other)


@given(lanes)
def test_a_name_is_plain_ascii_within_amqps_255_bytes(lane: Lane) -> None:
    for name in (lane.queue, lane.routing_key):
        assert len(name.encode()) <= _SHORT_BYTES_MAX
        assert name.isascii()
        assert name.isprintable()
        assert not set(name) & set(" #*")


@given(lanes)
def test_the_python_clients_library_takes_every_name(lane: Lane) -> None:
    commands.Queue.Declare(queue=lane.queue).marshal()
    commands.Queue.Bind(queue=lane.queue, exchange="outbox.events", routing_key=lane.routing_key).marshal()
    commands.Basic.Publish(exchange="outbox.events", routing_key=lane.routing_key).marshal()


@given(tenants)
def test_a_tenants_name_holds_no_dot_that_splits_it(tenant: str) -> None:
    """A topic pattern for one tenant would match another's key if a dot passed."""
    assert check_tenant(tenant) == tenant
    assert tenant_name(tenant).count(".") <= tenant.count(".")


@given(tenants)
def test_a_tenants_bucket_is_one_of_64_and_its_hash_fits_a_bigint(tenant: str) -> None:
    hashed = tenant_hash(tenant)
    assert -(2**63) <= hashed < 2**63
    assert 0 <= bucket_of(hashed) < BUCKETS
