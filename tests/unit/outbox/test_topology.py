"""Which bindings a routing key reaches."""

from outbox.topology import DEAD_EXCHANGE, EVENTS_EXCHANGE, keys_taking


def test_a_direct_exchange_takes_the_key_itself_alone() -> None:
    assert keys_taking(EVENTS_EXCHANGE, "billing.bulk.a.b") == ("billing.bulk.a.b",)


def test_a_topic_takes_every_pattern_that_a_group_may_be_bound_by() -> None:
    assert set(keys_taking(DEAD_EXCHANGE, "billing.bulk.acme")) == {
        "billing.bulk.acme",
        "#",
        "billing.#",
        "billing.bulk.#",
        "billing.bulk.acme.#",
    }
