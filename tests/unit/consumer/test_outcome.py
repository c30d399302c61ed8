from typing import assert_never

import pytest

from consumer.outcome import Dead, DeadCategory, DeadLetter, Done, Drop, Outcome, Retry, RetryLater, Snooze, Throttled
from outbox.errors import OutboxError


def _name(outcome: Outcome) -> str:
    match outcome:
        case Done():
            return "done"
        case Retry():
            return "retry"
        case Snooze():
            return "snooze"
        case Throttled():
            return "throttled"
        case DeadLetter():
            return "dead"
        case Drop():
            return "drop"
        case _:
            assert_never(outcome)


def test_every_outcome_has_a_name_and_the_union_is_closed() -> None:
    outcomes: list[Outcome] = [
        Done(),
        Retry(),
        Snooze(for_s=1),
        Throttled(after_s=1),
        DeadLetter(reason="no such account"),
        Drop(reason="not ours"),
    ]

    assert [_name(outcome) for outcome in outcomes] == ["done", "retry", "snooze", "throttled", "dead", "drop"]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_wait_that_is_no_wait_is_refused_where_it_is_written(seconds: float) -> None:
    with pytest.raises(ValueError, match="after_s: want seconds"):
        Retry(after_s=seconds)
    with pytest.raises(ValueError, match="after_s: want seconds"):
        Throttled(after_s=seconds)
    with pytest.raises(ValueError, match="for_s: want seconds"):
        Snooze(for_s=seconds)


def test_raising_says_the_same_as_returning() -> None:
    assert RetryLater("busy", after_s=3).outcome == Retry(after_s=3, reason="busy")
    assert Dead("forged", category=DeadCategory.SECURITY).outcome == DeadLetter(
        reason="forged", category=DeadCategory.SECURITY
    )
    assert isinstance(RetryLater(), OutboxError)
    assert isinstance(Dead("x"), OutboxError)
