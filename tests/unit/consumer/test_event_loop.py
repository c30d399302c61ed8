"""Which event loop a consumer runs on, and the thread beside it."""

import asyncio

import pytest

from consumer import event_loop
from consumer.event_loop import LoopName, run_on
from consumer.threaded.thread import WireThread


async def _kinds() -> tuple[str, str]:
    """The modules of the loops here and in a thread of the wire's."""
    found: list[str] = []

    async def look() -> None:
        found.append(type(asyncio.get_running_loop()).__module__)

    await look()
    assert await WireThread("a wire", look).ended(within_s=10)
    here, there = found
    return here, there


@pytest.mark.parametrize(
    ("name", "kind"), [("auto", "uvloop"), ("uvloop", "uvloop"), ("asyncio", "asyncio.unix_events")]
)
def test_a_loop_is_chosen_by_name_and_the_broker_s_connection_has_one_of_its_kind(name: LoopName, kind: str) -> None:
    assert run_on(name, _kinds()) == (kind, kind)


def test_where_uvloop_is_not_installed_it_is_python_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "find_spec", lambda _: None)
    assert run_on("auto", _kinds()) == ("asyncio.unix_events", "asyncio.unix_events")
