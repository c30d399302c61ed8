"""An app's own rules: which one decides, what follows, and what is refused when it is declared."""

import random
from collections.abc import Sequence
from typing import Any

import httpx
import psycopg
import pytest

from consumer import (
    Breaker,
    Budget,
    Consumer,
    Dead,
    DeadCategory,
    DeadLetter,
    Drop,
    HttpStatus,
    PauseHandler,
    PauseLane,
    Policy,
    Retry,
    RetryLater,
    Rule,
    Snooze,
    SqlState,
    Throttled,
)
from consumer.engine.attempt import Raised
from consumer.engine.verdict import Buried, Fate, Finished, Pending, fate_of
from consumer.registry import Handler
from consumer.store.ledger import State
from outbox.errors import ConfigError
from outbox.event import Event

# For what a type checker would refuse before we do.
ANY_RULE: Any = Rule
ANY_POLICY: Any = Policy
ANY_CONSUMER: Any = Consumer


class CardDeclined(Exception):
    code = "declined"


def handler_with(rules: Sequence[Rule] = (), *, app_wide: Sequence[Rule] = (), policy: Policy | None = None) -> Handler:
    consumer = Consumer("billing", rules=app_wide, policy=policy)

    @consumer.on("orders.order.placed", rules=rules)
    def bill(event: Event) -> None: ...

    return consumer.registry.handlers_of("orders.order.placed")[0]


def fate(handler: Handler, error: BaseException, *, attempt: int = 1, elapsed_s: float = 0.0) -> Fate:
    return fate_of(handler, Raised(attempt=attempt, error=error), elapsed_s=elapsed_s, rng=random.Random(1))


def answered(status: int, **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://host/")
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, headers=fields))


@pytest.mark.parametrize(
    ("match", "error"),
    [
        (CardDeclined, CardDeclined()),
        (Exception, CardDeclined()),
        ((KeyError, CardDeclined), CardDeclined()),
        (lambda error: error.code == "declined", CardDeclined()),
        (SqlState("23505"), psycopg.errors.UniqueViolation()),
        (SqlState("23..."), psycopg.errors.UniqueViolation()),
        (HttpStatus("409"), answered(409)),
        (HttpStatus("4.."), answered(418)),
        (CardDeclined, ExceptionGroup("two", [ValueError(), ExceptionGroup("in", [CardDeclined()])])),
    ],
)
def test_a_rule_is_for_what_it_matches_by_itself_as_a_cause_or_within_a_group(match: Any, error: Exception) -> None:
    handler = handler_with([Rule(match=match, then=Drop(reason="known"))])
    around = RuntimeError("billing failed")
    around.__cause__ = error

    assert isinstance(fate(handler, error), Finished)
    assert isinstance(fate(handler, around), Finished)


@pytest.mark.parametrize(
    "match",
    [
        KeyError,
        (),
        SqlState("08..."),
        HttpStatus("5.."),
        lambda error: error.nothing,
        lambda error: error / 0,
    ],
)
def test_a_rule_is_not_for_what_it_does_not_match(match: Any) -> None:
    rules = [Rule(match=match, then=Drop(reason="known"))] if match != () else []

    assert isinstance(fate(handler_with(rules), CardDeclined()), Pending)


def test_the_first_rule_that_matches_decides_a_handlers_own_before_the_apps_before_the_built_in_ones() -> None:
    own = Rule(match=CardDeclined, then=DeadLetter(reason="own", category=DeadCategory.INVALID))
    second = Rule(match=CardDeclined, then=Drop(reason="never asked"))
    app = Rule(match=Exception, then=Drop(reason="app"))
    handler = handler_with([own, second], app_wide=[app])

    assert fate(handler, CardDeclined()) == Buried(
        handler=handler.name, category=DeadCategory.INVALID, attempts=1, what=FOUND
    )
    assert isinstance(fate(handler, ConnectionError()), Finished)
    assert isinstance(fate(handler_with(), ConnectionError()), Pending)


class _Anything:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, BaseException)

    __hash__ = None  # type: ignore[assignment]


FOUND: Any = _Anything()


def test_a_rule_may_retry_by_a_policy_of_its_own_what_would_be_dead_at_once() -> None:
    rule = Rule(match=SqlState("23503"), then=Policy(max_retries=1, base_s=60))
    handler = handler_with([rule], policy=Policy(max_retries=9))
    error = psycopg.errors.ForeignKeyViolation()

    first, second = fate(handler, error), fate(handler, error, attempt=2)

    assert isinstance(first, Pending)
    assert first.attempts == 1
    assert first.wait_s >= 60
    assert isinstance(second, Buried)
    assert isinstance(fate(handler_with(), error), Buried)


@pytest.mark.parametrize("then", [Retry(after_s=5), Throttled(after_s=5), Policy(base_s=5)])
def test_no_rule_comes_back_before_a_retry_after(then: Retry | Throttled | Policy) -> None:
    handler = handler_with([Rule(match=HttpStatus("429"), then=then)])

    early = fate(handler, answered(429, retry_after="1"))
    late = fate(handler, answered(429, retry_after="500"))

    assert isinstance(early, Pending)
    assert isinstance(late, Pending)
    assert 5 <= early.wait_s < 500 <= late.wait_s


def test_being_throttled_by_a_rule_spends_no_attempt() -> None:
    found = fate(handler_with([Rule(match=CardDeclined, then=Throttled(after_s=5))]), CardDeclined(), attempt=3)

    assert isinstance(found, Pending)
    assert found.attempts == 2


def test_what_a_rule_drops_is_settled_and_says_why() -> None:
    handler = handler_with([Rule(match=CardDeclined, then=Drop(reason="the shop knows"))])

    assert fate(handler, CardDeclined()) == Finished(
        handler=handler.name, state=State.SKIPPED, is_new=True, why="the shop knows"
    )


def test_a_security_refusal_is_terminal() -> None:
    then = DeadLetter(reason="forged", category=DeadCategory.SECURITY)
    found = fate(handler_with([Rule(match=PermissionError, then=then)]), PermissionError())

    assert isinstance(found, Buried)
    assert found.category is DeadCategory.SECURITY


@pytest.mark.parametrize("pause", [PauseLane(for_s=60), PauseHandler(for_s=60), PauseLane(), PauseHandler()])
def test_an_event_that_a_rule_pauses_for_waits_uncharged(pause: PauseLane | PauseHandler) -> None:
    found = fate(handler_with([Rule(match=CardDeclined, then=pause)]), CardDeclined(), attempt=6)

    assert isinstance(found, Pending)
    assert (found.pause, found.attempts) == (pause, 5)
    assert found.wait_s == (5 if pause.for_s is None else 60)


def test_pausing_for_a_time_ends_at_the_cap_on_elapsed_time_and_until_resumed_does_not() -> None:
    policy = Policy(max_elapsed_s=100)
    timed = handler_with([Rule(match=CardDeclined, then=PauseLane(for_s=60))], policy=policy)
    endless = handler_with([Rule(match=CardDeclined, then=PauseLane())], policy=policy)

    assert isinstance(fate(timed, CardDeclined(), elapsed_s=50), Buried)
    assert isinstance(fate(endless, CardDeclined(), elapsed_s=1e9), Pending)


def test_what_a_handler_says_itself_no_rule_overrules() -> None:
    handler = handler_with([Rule(match=Exception, then=Drop(reason="all"))])

    assert isinstance(fate(handler, RetryLater("not yet")), Pending)
    assert isinstance(fate(handler, Dead("no")), Buried)


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (lambda: ANY_RULE(match="23505", then=Drop(reason="x")), "rule: want match to be an exception class, SqlState"),
        (lambda: ANY_RULE(match=(), then=Drop(reason="x")), "rule: want match to name something"),
        (lambda: ANY_RULE(match=int, then=Drop(reason="x")), "rule: want match to be an exception class"),
        (lambda: ANY_RULE(match=KeyError, then="retry"), "rule: want then to be one of Policy, Retry, Throttled"),
        (
            lambda: ANY_RULE(match=KeyError, then=Snooze(for_s=1)),
            "rule: want then to be one of Policy, Retry, Throttled",
        ),
        (lambda: SqlState("235"), "SqlState: want five characters"),
        (lambda: SqlState("23x.."), "SqlState: want five characters"),
        (lambda: HttpStatus("5xx"), "HttpStatus: want three characters"),
        (lambda: PauseLane(for_s=0), "pause: want for_s to be seconds above 0"),
        (lambda: PauseHandler(for_s=float("nan")), "pause: want for_s to be seconds above 0"),
        (lambda: ANY_CONSUMER("billing", rules=[Drop(reason="x")]), "consumer billing: want rules as a list of Rule"),
        (lambda: ANY_CONSUMER("billing").on("a.b", rules=[KeyError]), "on: want rules as a list of Rule"),
        (lambda: ANY_POLICY(max_retries=-1), "policy: want max_retries to be a whole number, 0 or more, got -1"),
        (lambda: ANY_POLICY(max_retries=1.5), "policy: want max_retries to be a whole number"),
        (lambda: ANY_POLICY(max_wait_s=float("nan")), "policy: want max_wait_s to be a number, 0 or more, got nan"),
        (lambda: ANY_POLICY(jitter="full"), "policy: want jitter as a Jitter, got 'full'"),
        (lambda: ANY_POLICY(breaker=True), "policy: want breaker as a"),
        (lambda: Budget(percent=-1), "budget: want percent to be a number, 0..1000, got -1"),
        (lambda: Breaker(calls_min=0), "breaker: want calls_min to be a whole number, 1 or more, got 0"),
        (lambda: Breaker(open_s=10, open_max_s=5), "breaker: want open_max_s to be a number, 10 or more, got 5"),
    ],
)
def test_what_cannot_be_meant_is_refused_when_it_is_declared(declare: Any, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        declare()
    assert str(refused.value).startswith(told)
