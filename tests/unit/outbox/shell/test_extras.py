"""What is said of a package that is missing; the packages of our own extras are all here."""

import pytest

from outbox.shell import extras


def _hide(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(extras, "_is_installed", lambda name: name not in names)


def test_what_the_programs_extra_lacks_is_named_whatever_a_library_says(monkeypatch: pytest.MonkeyPatch) -> None:
    _hide(monkeypatch, "tenacity", "python-dotenv", "alembic")
    told = extras.lacking("outbox-consumer", ImportError("The asyncio module requires greenlet"))
    assert told == "outbox-consumer: want python-dotenv, tenacity, got none: pip install 'fairpost[consumer]'"


@pytest.mark.parametrize(
    ("program", "extra", "wanted"),
    [
        ("outbox-relay", "relay", "fairpost-relay"),
        ("outbox-consumer", "consumer", "fairpost-consumer"),
        ("outbox", "cli", "fairpost-consumer, fairpost-relay"),
    ],
)
def test_a_process_that_is_missing_itself_is_what_to_install(
    monkeypatch: pytest.MonkeyPatch, program: str, extra: str, wanted: str
) -> None:
    _hide(monkeypatch, "fairpost-relay", "fairpost-consumer")
    # Some other package of that name may be there.
    told = extras.lacking(program, ModuleNotFoundError("No module named 'relay.cli'", name="relay.cli"))
    assert told == f"{program}: want {wanted}, got none: pip install 'fairpost[{extra}]'"


def test_the_command_wants_what_the_processes_want(monkeypatch: pytest.MonkeyPatch) -> None:
    _hide(monkeypatch, "prometheus-client")
    told = extras.lacking("outbox", ModuleNotFoundError("no", name="prometheus_client"))
    assert told == "outbox: want prometheus-client, got none: pip install 'fairpost[cli]'"


@pytest.mark.parametrize("error", [ModuleNotFoundError("no", name="app"), ImportError("no"), ValueError("no")])
def test_nothing_is_said_of_any_other_error(error: Exception) -> None:
    assert extras.lacking("outbox", error) is None
