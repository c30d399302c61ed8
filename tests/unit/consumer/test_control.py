"""What a pause is about, in the scheduler's terms and in words."""

from datetime import UTC, datetime

from consumer.decide.control import Pause, Scope, Source, paused_scopes
from outbox.event import Tier

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
HANDLED = {"bill": ["orders.placed", "orders.changed"]}


def pause(scope: Scope, *, actor: str = "ann") -> Pause:
    return Pause(scope=scope, source=Source.OPERATOR, actor=actor, reason="", set_at=NOON, until=None)


def scopes(*pauses: Pause) -> set[tuple[Tier | None, str | None, str | None]]:
    return set(paused_scopes(pauses, types_of=lambda handler: HANDLED.get(handler, [])))


def test_a_handler_stands_for_the_types_that_it_handles_here_and_for_none_where_it_is_not_known() -> None:
    assert scopes(pause(Scope(handler="bill"))) == {(None, None, "orders.placed"), (None, None, "orders.changed")}
    assert scopes(pause(Scope(handler="bill", tenant="acme", tier=Tier.BULK, type="orders.placed"))) == {
        (Tier.BULK, "acme", "orders.placed")
    }
    assert scopes(pause(Scope(handler="unknown"))) == set()


def test_a_scope_that_two_have_paused_is_paused_once_and_the_whole_group_by_a_scope_of_nothing() -> None:
    assert scopes(pause(Scope(tenant="acme")), pause(Scope(tenant="acme"), actor="bob"), pause(Scope())) == {
        (None, "acme", None),
        (None, None, None),
    }


def test_a_scope_is_told_by_what_it_names() -> None:
    assert str(Scope()) == "the whole group"
    assert (
        str(Scope(tenant="acme", tier=Tier.BULK, type="t", handler="h")) == "tenant acme, tier bulk, type t, handler h"
    )
