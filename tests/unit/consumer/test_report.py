"""What is told of failures."""

from consumer.decide.report import report_of, sentence


def _raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 - it is raised a line above, for its traceback
        return caught


def test_an_error_is_told_by_its_class_and_place_and_never_by_its_values() -> None:
    report = report_of(_raised(ValueError("canary-4711")), values={"canary-4711"})
    assert report.error_class == "ValueError"
    assert report.trace is not None
    assert "_raised" in report.trace
    assert "canary" not in report.message + report.trace


def test_alike_failures_have_one_fingerprint() -> None:
    first, second = (report_of(_raised(ValueError(f"order {number}"))) for number in (1, 2))
    assert first.fingerprint == second.fingerprint
    assert first.fingerprint != report_of(_raised(KeyError("order"))).fingerprint


def test_what_an_app_says_loses_what_stands_in_the_payload() -> None:
    report = report_of("no customer canary-4711 here", values={"canary-4711"})
    assert "canary" not in report.message
    assert "customer" in report.message


def test_our_own_sentences_stay_whole_and_printable() -> None:
    assert sentence("data version: want at most 2, got 3").message == "data version: want at most 2, got 3"
    assert "\x1b" not in sentence("event type: \x1b[2J").message
    assert len(sentence("x" * 10_000).message) <= 512
