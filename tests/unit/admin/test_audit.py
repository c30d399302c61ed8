"""Who did something is always written down."""

import getpass
import os

import pytest

from outbox_admin.audit import named


def test_whoever_says_who_asks_is_believed() -> None:
    assert named("ann") == "ann"


def test_otherwise_it_is_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    assert named(None) == named("") == "ann"


@pytest.mark.parametrize("error", [KeyError("getpwuid(): uid not found"), OSError("No username set")])
def test_in_a_container_whose_user_has_no_name_it_is_the_number(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def nameless() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert named(None) == f"uid {os.getuid()}"
