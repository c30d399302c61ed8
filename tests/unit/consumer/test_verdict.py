"""What follows from how handlers ended."""

import random
from typing import Any

import pytest

from consumer import Consumer, DeadCategory, DeadLetter, Drop, Policy, Retry, Snooze, Throttled
from consumer.decide.order import Turn
from consumer.engine.attempt import Early, Handled, Known, Raised, Returned
from consumer.engine.verdict import Buried, Elsewhere, Fate, Finished, Pending, entries_of, fate_of, lets_key_pass
from consumer.registry import Handler
from consumer.store.ledger import Entry, State
from consumer.store.work import Reason
from outbox.event import Event

consumer = Consumer("billing", policy=Policy(max_retries=2, base_s=1, max_wait_s=8))


@consumer.on("orders.order.placed")
def bill(event: Event) -> None: ...


HANDLER: Handler = consumer.registry.handlers_of("orders.order.placed")[0]


def fate(result: Any, *, elapsed_s: float = 0.0) -> Fate:
    return fate_of(HANDLER, result, elapsed_s=elapsed_s, rng=random.Random(1))


def test_what_was_handled_or_is_known_to_be_is_finished() -> None:
    assert fate(Handled(attempt=1)) == Finished(handler="bill", state=State.DONE, is_new=True)
    assert fate(Known(state=State.DONE)) == Finished(handler="bill", state=State.DONE, is_new=False)
    assert fate(Known(state=State.SKIPPED)) == Finished(handler="bill", state=State.SKIPPED, is_new=False)
    dropped = fate(Returned(attempt=1, outcome=Drop(reason="old")))
    assert dropped == Finished(handler="bill", state=State.SKIPPED, is_new=True, why="old")


@pytest.mark.parametrize("state", [State.RETRY, State.DEAD])
def test_a_duplicate_of_what_a_stored_row_has_is_left_to_that_row(state: State) -> None:
    assert fate(Known(state=state)) == Elsewhere(handler="bill")


@pytest.mark.parametrize("result", [Known(state=State.RUNNING), Early(turn=Turn.BUSY)])
def test_what_another_process_has_is_looked_at_again_uncharged(result: Known | Early) -> None:
    found = fate(result)
    assert isinstance(found, Pending)
    assert (found.reason, found.attempts) == (Reason.HELD, 0)


def test_each_failure_is_charged_until_there_are_no_more_retries() -> None:
    for attempt in (1, 2):
        found = fate(Raised(attempt=attempt, error=ConnectionError()))
        assert isinstance(found, Pending)
        assert (found.reason, found.attempts) == (Reason.RETRY, attempt)
    last = fate(Raised(attempt=3, error=ConnectionError()))
    assert isinstance(last, Buried)
    assert (last.category, last.attempts) == (DeadCategory.EXHAUSTED, 3)


def test_a_wait_that_was_asked_for_is_never_cut_short() -> None:
    found = fate(Returned(attempt=1, outcome=Retry(after_s=100)))
    assert isinstance(found, Pending)
    assert found.wait_s >= 100


@pytest.mark.parametrize("outcome", [Snooze(for_s=7), Throttled(after_s=7)])
def test_waiting_on_request_spends_no_attempt(outcome: Snooze | Throttled) -> None:
    found = fate(Returned(attempt=3, outcome=outcome))
    assert isinstance(found, Pending)
    assert found.attempts == 2
    assert found.wait_s >= 7


def test_a_dead_letter_keeps_the_category_that_its_handler_gave_it() -> None:
    outcome = DeadLetter(reason="no such customer", category=DeadCategory.SECURITY)
    found = fate(Returned(attempt=1, outcome=outcome))
    assert found == Buried(handler="bill", category=DeadCategory.SECURITY, attempts=1, what="no such customer")


def test_who_has_been_tried_for_too_long_is_dead() -> None:
    found = fate(Raised(attempt=1, error=ConnectionError()), elapsed_s=HANDLER.policy.max_elapsed_s)
    assert isinstance(found, Buried)


def test_the_ledger_is_told_what_it_does_not_know() -> None:
    fates: list[Fate] = [
        Finished(handler="a", state=State.DONE, is_new=True),
        Finished(handler="b", state=State.SKIPPED, is_new=True),
        Finished(handler="c", state=State.SKIPPED, is_new=False),
        Elsewhere(handler="d"),
        Pending(handler="e", reason=Reason.RETRY, wait_s=1, attempts=2, what=None),
        Pending(handler="f", reason=Reason.HELD, wait_s=1, attempts=0, what=None),
        Buried(handler="g", category=DeadCategory.PERMANENT, attempts=3, what="bad"),
    ]
    assert entries_of(fates) == [
        Entry(handler="b", state=State.SKIPPED, attempts=1),
        Entry(handler="e", state=State.RETRY, attempts=2),
        Entry(handler="g", state=State.DEAD, attempts=3),
    ]


def test_a_key_moves_on_when_every_handler_has_ended() -> None:
    done = Finished(handler="a", state=State.DONE, is_new=True)
    waits = Pending(handler="b", reason=Reason.RETRY, wait_s=1, attempts=1, what=None)
    dead = Buried(handler="c", category=DeadCategory.PERMANENT, attempts=1, what="bad")
    assert lets_key_pass([done], skips_dead=False)
    assert lets_key_pass([], skips_dead=False)
    assert not lets_key_pass([done, waits], skips_dead=True)
    assert not lets_key_pass([done, Elsewhere(handler="d")], skips_dead=True)
    assert not lets_key_pass([done, dead], skips_dead=False)
    assert lets_key_pass([done, dead], skips_dead=True)
