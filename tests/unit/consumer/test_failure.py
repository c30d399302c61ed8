import random
from collections.abc import Callable

import psycopg
import pytest
import sqlalchemy.exc
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from consumer import Policy
from consumer.decide.causes import sqlstate_of
from consumer.decide.classify import classify, failure_of
from consumer.decide.failure import Failure, FailureCategory, GiveUp, TryAgain, decide
from consumer.outcome import Dead, DeadCategory, DeadLetter, Retry, RetryLater, Throttled
from outbox.errors import InvalidEvent, LeaseLost, SchemaMissing, StoreUnavailable

RNG = random.Random(1)


def _database_error(state: str) -> psycopg.Error:
    return psycopg.errors.lookup(state)("said the server")


def _through_sqlalchemy(error: BaseException) -> BaseException:
    return sqlalchemy.exc.DBAPIError.instance("select 1", {}, error, psycopg.Error)


def _caused(outer: BaseException, cause: BaseException) -> BaseException:
    outer.__cause__ = cause
    return outer


@pytest.mark.parametrize("wrap", [lambda error: error, _through_sqlalchemy], ids=["psycopg", "sqlalchemy"])
@pytest.mark.parametrize(
    ("state", "category"),
    [
        ("08006", FailureCategory.TRANSIENT),
        ("40001", FailureCategory.TRANSIENT),
        ("40P01", FailureCategory.TRANSIENT),
        ("53300", FailureCategory.TRANSIENT),
        ("55P03", FailureCategory.TRANSIENT),
        ("57P01", FailureCategory.TRANSIENT),
        ("57P03", FailureCategory.TRANSIENT),
        ("22003", FailureCategory.PERMANENT),
        ("23505", FailureCategory.PERMANENT),
        ("42P01", FailureCategory.PERMANENT),
        ("42501", FailureCategory.PERMANENT),
        ("P0001", FailureCategory.UNKNOWN),
        ("XX000", FailureCategory.UNKNOWN),
    ],
)
def test_a_database_error_means_what_its_sqlstate_means(
    state: str, category: FailureCategory, wrap: Callable[[BaseException], BaseException]
) -> None:
    error = wrap(_database_error(state))

    assert classify(error).category is category
    assert sqlstate_of(error) == state


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionResetError(),
        OSError("network is unreachable"),
        psycopg.OperationalError("connection refused"),
        _through_sqlalchemy(psycopg.OperationalError("the connection is closed")),
        sqlalchemy.exc.TimeoutError("QueuePool limit reached"),
        StoreUnavailable("no answer"),
        LeaseLost("owned by another"),
        RetryLater("not yet"),
    ],
    ids=repr,
)
def test_what_may_pass_is_transient(error: BaseException) -> None:
    assert classify(error).category is FailureCategory.TRANSIENT


@pytest.mark.parametrize(
    "error", [InvalidEvent("no"), SchemaMissing("no"), Dead("no"), psycopg.errors.UniqueViolation("no")], ids=repr
)
def test_what_cannot_pass_is_permanent(error: BaseException) -> None:
    failure = classify(error)

    assert failure.category is FailureCategory.PERMANENT
    assert failure.dead_category is DeadCategory.PERMANENT


def _validation_error() -> ValidationError:
    class Order(BaseModel):
        amount: int

    with pytest.raises(ValidationError) as caught:
        Order.model_validate({"amount": "many"})
    return caught.value


@pytest.mark.parametrize(
    "error", [ValueError("x"), TypeError("x"), KeyError("x"), ZeroDivisionError(), _validation_error()], ids=type
)
def test_a_bug_is_unknown_and_buried_as_exhausted(error: BaseException) -> None:
    assert classify(error) == Failure(category=FailureCategory.UNKNOWN, dead_category=DeadCategory.EXHAUSTED)


def test_a_cause_decides_where_the_error_around_it_says_nothing() -> None:
    error = _caused(
        RuntimeError("billing failed"), _caused(ValueError("x"), _through_sqlalchemy(_database_error("40001")))
    )

    assert classify(error).category is FailureCategory.TRANSIENT
    assert sqlstate_of(error) == "40001"


def test_what_was_merely_being_handled_is_no_cause() -> None:
    error = ValueError("bug in the except block")
    error.__context__ = ConnectionResetError()

    assert classify(error).category is FailureCategory.UNKNOWN


def test_a_chain_that_loops_or_never_ends_is_left() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    long: BaseException = ValueError("end")
    for _ in range(10_000):
        long = _caused(ValueError("link"), long)

    assert classify(first).category is FailureCategory.UNKNOWN
    assert classify(long).category is FailureCategory.UNKNOWN


def test_a_state_that_is_none_is_ignored() -> None:
    error = ValueError("x")
    error.sqlstate = "canary-in-a-state"  # type: ignore[attr-defined]  # an app may set anything

    assert sqlstate_of(error) is None


def test_a_group_is_as_bad_as_the_worst_in_it_and_waits_the_longest() -> None:
    mixed = ExceptionGroup("two", [ConnectionResetError(), psycopg.errors.UniqueViolation("x")])
    waits = ExceptionGroup("two", [RetryLater(after_s=5), ExceptionGroup("in", [RetryLater(after_s=70)])])

    assert classify(mixed).category is FailureCategory.PERMANENT
    assert classify(waits) == Failure(category=FailureCategory.TRANSIENT, not_before_s=70)


def test_an_error_that_says_when_to_come_back_is_throttled() -> None:
    class AdmissionRefused(Exception):
        retry_after_s = 12.5

    assert classify(AdmissionRefused()) == Failure(category=FailureCategory.THROTTLED, not_before_s=12.5)


@pytest.mark.parametrize("nonsense", [-1, float("nan"), float("inf"), "soon", None])
def test_an_error_that_says_when_in_nonsense_is_not_throttled(nonsense: object) -> None:
    error = ConnectionResetError()
    error.retry_after_s = nonsense  # type: ignore[attr-defined]  # an app may set anything

    assert classify(error).category is FailureCategory.TRANSIENT


def test_a_returned_outcome_means_what_the_raised_one_means() -> None:
    assert failure_of(Retry(after_s=4)) == classify(RetryLater(after_s=4))
    assert failure_of(DeadLetter(reason="x")) == classify(Dead("x"))
    assert failure_of(DeadLetter(reason="x", category=DeadCategory.SECURITY)).category is FailureCategory.SECURITY
    assert failure_of(Throttled(after_s=4)) == Failure(category=FailureCategory.THROTTLED, not_before_s=4)


TRANSIENT = Failure(category=FailureCategory.TRANSIENT)
THROTTLED = Failure(category=FailureCategory.THROTTLED, not_before_s=30)


@pytest.mark.parametrize("category", [FailureCategory.TRANSIENT, FailureCategory.UNKNOWN])
def test_five_retries_follow_the_first_attempt_and_no_more(category: FailureCategory) -> None:
    failure = Failure(category=category)

    decisions = [decide(failure, attempt=n, elapsed_s=0, policy=Policy(), rng=RNG) for n in range(1, 8)]

    assert [type(decision) for decision in decisions] == [TryAgain] * 5 + [GiveUp] * 2
    assert decisions[-1] == GiveUp(category=DeadCategory.EXHAUSTED)


@pytest.mark.parametrize("category", [FailureCategory.PERMANENT, FailureCategory.SECURITY])
def test_what_fails_again_is_not_tried_again(category: FailureCategory) -> None:
    failure = Failure(category=category, dead_category=DeadCategory.SECURITY)

    assert decide(failure, attempt=1, elapsed_s=0, policy=Policy(), rng=RNG) == GiveUp(category=DeadCategory.SECURITY)


def test_being_throttled_spends_no_attempt_however_often() -> None:
    decision = decide(THROTTLED, attempt=1_000, elapsed_s=0, policy=Policy(max_wait_s=10), rng=RNG)

    assert decision == TryAgain(wait_s=30, is_charged=False)


def test_who_is_throttled_without_a_time_waits_as_long_as_before_up_to_the_cap() -> None:
    failure = Failure(category=FailureCategory.THROTTLED)
    elapsed_s, waits = 0.0, []
    while elapsed_s < 3_600:
        decision = decide(failure, attempt=1, elapsed_s=elapsed_s, policy=Policy(max_wait_s=300), rng=RNG)
        assert isinstance(decision, TryAgain)
        waits.append(decision.wait_s)
        elapsed_s += decision.wait_s

    assert waits == sorted(waits)
    assert 1 <= waits[0] <= 1.5
    assert waits[-1] == 300
    assert len(waits) < 25  # an hour of a second each would be 3,600 calls to who asked for patience


def test_being_throttled_for_ever_ends_at_the_cap_on_elapsed_time() -> None:
    decision = decide(THROTTLED, attempt=1, elapsed_s=80, policy=Policy(max_elapsed_s=100), rng=RNG)

    assert decision == GiveUp(category=DeadCategory.EXHAUSTED)


def test_a_wait_that_would_end_past_the_cap_on_elapsed_time_is_not_begun() -> None:
    policy = Policy(max_elapsed_s=100)

    assert isinstance(decide(TRANSIENT, attempt=1, elapsed_s=98, policy=policy, rng=RNG), TryAgain)
    assert isinstance(decide(TRANSIENT, attempt=1, elapsed_s=99.5, policy=policy, rng=RNG), GiveUp)


@given(
    category=st.sampled_from([FailureCategory.TRANSIENT, FailureCategory.UNKNOWN, FailureCategory.THROTTLED]),
    not_before_s=st.floats(0, 100_000),
    attempt=st.integers(1, 1_000_000),
    elapsed_s=st.floats(0, 100_000),
    max_wait_s=st.floats(0.1, 10_000),
    seed=st.integers(0, 1000),
)
def test_no_wait_ends_before_the_retry_after_or_past_the_caps(
    category: FailureCategory, not_before_s: float, attempt: int, elapsed_s: float, max_wait_s: float, seed: int
) -> None:
    policy = Policy(max_wait_s=max_wait_s)
    failure = Failure(category=category, not_before_s=not_before_s)

    decision = decide(failure, attempt=attempt, elapsed_s=elapsed_s, policy=policy, rng=random.Random(seed))

    if isinstance(decision, TryAgain):
        assert not_before_s <= decision.wait_s <= max(not_before_s, max_wait_s)
        assert elapsed_s + decision.wait_s <= policy.max_elapsed_s
        assert decision.is_charged is (category is not FailureCategory.THROTTLED)
    else:
        assert decision.category is DeadCategory.EXHAUSTED
