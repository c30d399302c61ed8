"""What crosses from one process to another comes out as what it was, as far as anybody can tell."""

import json

import pytest

from consumer.decide.crossing import error_from_json, error_to_json, outcome_from_json, outcome_to_json
from consumer.outcome import Dead, DeadCategory, DeadLetter, Done, Drop, Outcome, Retry, Snooze, Throttled
from outbox.errors import PermanentError


def through(content: dict[str, object]) -> dict[str, object]:
    read: dict[str, object] = json.loads(json.dumps(content))
    return read


@pytest.mark.parametrize(
    "outcome",
    [
        Done(),
        Done(result={"id": [1, None]}),
        Retry(after_s=2.5, reason="r"),
        Snooze(for_s=1),
        Throttled(after_s=3),
        DeadLetter(reason="gone", category=DeadCategory.SECURITY),
        Drop(reason="not ours"),
    ],
)
def test_an_outcome_comes_out_equal(outcome: Outcome) -> None:
    assert outcome_from_json(through(outcome_to_json(outcome))) == outcome


def test_what_is_no_outcome_is_refused() -> None:
    with pytest.raises(PermanentError, match="want an Outcome"):
        outcome_from_json({"kind": "Popen", "fields": {"args": "x"}})


class Answer:
    def __init__(self) -> None:
        self.status_code = 429
        self.headers = {"Retry-After": "7"}


class ApiError(Exception):
    def __init__(self, what: str, response: object) -> None:
        super().__init__(what)
        self.response = response


def crossed(error: BaseException) -> BaseException:
    return error_from_json(through(error_to_json(error)))


def test_an_error_keeps_its_class_its_values_and_its_cause() -> None:
    came = crossed(ApiError("slow down", Answer()))
    assert type(came) is ApiError
    assert (str(came), came.response.status_code, came.response.headers) == (  # type: ignore[attr-defined]
        "slow down",
        429,
        {"Retry-After": "7"},
    )
    error = ValueError("wrong")
    error.__cause__ = ConnectionResetError(104, "reset")
    came = crossed(error)
    assert isinstance(came.__cause__, ConnectionResetError)
    assert came.__cause__.errno == 104
    dead = crossed(Dead("no", category=DeadCategory.SECURITY))
    assert isinstance(dead, Dead)
    assert dead.outcome == DeadLetter(reason="no", category=DeadCategory.SECURITY)


def test_a_class_that_is_not_known_here_keeps_its_name_and_what_it_is_a_kind_of() -> None:
    content = through(error_to_json(OSError(5, "gone")))
    content["classes"] = [["shop.errors", "ShopError"], ["shop.errors", "Base"], ["builtins", "OSError"]]
    came = error_from_json(content)
    assert isinstance(came, OSError)
    assert (type(came).__name__, type(came).__module__) == ("ShopError", "shop.errors")
    assert str(came) == "[Errno 5] gone"


def test_nothing_but_exceptions_is_made_of_a_name_and_no_constructor_runs() -> None:
    content = through(error_to_json(ValueError("x")))
    content["classes"] = [["subprocess", "Popen"], ["os", "system"]]
    came = error_from_json(content)
    assert type(came).__mro__[1] is Exception
    assert str(came) == "x"
