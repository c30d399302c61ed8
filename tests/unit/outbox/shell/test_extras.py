"""What is said of a package that is missing; the packages of our own extras are all here."""

import pytest

from outbox.shell import extras


def _hide(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in packages else object())


def test_a_programs_own_extra_is_named_whatever_a_library_says(monkeypatch: pytest.MonkeyPatch) -> None:
    _hide(monkeypatch, "tenacity", "dotenv")
    told = extras.lacking("outbox-consumer", ImportError("The asyncio module requires greenlet"))
    assert told == "outbox-consumer: want dotenv, tenacity, got none: pip install 'fairpost[consumer]'"


def test_a_package_of_another_extra_is_named_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _hide(monkeypatch, "prometheus_client")
    told = extras.lacking("outbox", ModuleNotFoundError("no", name="prometheus_client"))
    assert told == "outbox: want prometheus_client, got none: pip install 'fairpost[relay]'"


@pytest.mark.parametrize("error", [ModuleNotFoundError("no", name="app"), ImportError("no"), ValueError("no")])
def test_nothing_is_said_of_any_other_error(error: Exception) -> None:
    assert extras.lacking("outbox", error) is None
