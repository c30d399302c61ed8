"""Handlers in processes of their own: real ones, which burn, crash and are killed; nobody else notices."""

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from consumer.app import load_consumer
from consumer.engine.pool import Pool, ProcessDied
from consumer.engine.run import Programs
from consumer.outcome import DeadLetter, Done, Retry, RetryLater
from outbox.shell.child import own_command
from tests.support.engine import an_event, memory_rig

APP = """
import asyncio, ctypes, os, re
from consumer import Consumer, Context, DeadLetter, Done, Outcome, Policy, RetryLater

consumer = Consumer("billing", policy=Policy(max_retries=3, base_s=0.01, max_wait_s=0.02))

class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} {two}")

@consumer.on("orders.order.placed", ledger="leased", isolation="process", deadline_s=3)
def bill(event: dict, ctx: Context) -> Outcome | None:
    deed = event.get("deed", "")
    if deed == "segfault":
        ctypes.string_at(0)
    if deed == "burn":
        re.match("(a+)+$", "a" * 64 + "b")  # never ends, and never lets another thread run
    if deed == "odd":
        raise Odd("zoe", 1)
    if deed == "later":
        raise RetryLater("soon", after_s=7.0)
    if deed == "timeout":
        raise TimeoutError("no answer") from OSError(104, "reset")
    if deed == "bury":
        return DeadLetter(reason="no such order")
    if deed == "loop":
        return Done(result={"loop": type(asyncio.get_running_loop()).__module__})
    return Done(result={"pid": os.getpid(), "attempt": ctx.attempt, "token": ctx.fencing_token})
"""


class Isolated:
    """The app, as it is named and as it is loaded here, and a pool that runs it."""

    def __init__(self, directory: Path) -> None:
        name = f"isolated_{directory.name.replace('-', '_')}"
        (directory / f"{name}.py").write_text(APP)
        self.app = f"{name}:consumer"
        self.consumer = load_consumer(self.app, directory=str(directory))
        self.pool = Pool(self.command, size=1)

    def command(self) -> Sequence[str]:
        return own_command("consumer", "isolated", self.app)

    async def ask(self, deed: str = "") -> object:
        event = an_event(payload=b'{"order_id": 1, "deed": "%s"}' % deed.encode())
        (handler,) = self.consumer.registry.handlers_of(event.type)
        return await self.pool.call(handler, event, {})


@pytest.fixture
async def isolated(migrated_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Isolated]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("OUTBOX_DATABASE_URL", migrated_database)
    monkeypatch.setenv("OUTBOX_RABBITMQ_URL", "amqp://nobody@127.0.0.1:1/")
    isolated = Isolated(tmp_path)
    yield isolated
    await isolated.pool.close()


@pytest.mark.parametrize(("name", "kind"), [("auto", "uvloop"), ("asyncio", "asyncio.unix_events")])
async def test_a_process_runs_on_the_event_loop_that_is_set(
    isolated: Isolated, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    monkeypatch.setenv("OUTBOX_CONSUMER_LOOP", name)
    assert await isolated.ask("loop") == Done(result={"loop": kind})


async def test_what_a_handler_returns_and_raises_crosses_as_what_it_is(isolated: Isolated) -> None:
    done = await isolated.ask()
    assert isinstance(done, Done)
    assert isinstance(done.result, dict)
    assert done.result["pid"] != os.getpid()
    assert await isolated.ask("bury") == DeadLetter(reason="no such order")
    with pytest.raises(Exception, match="zoe 1") as odd:
        await isolated.ask("odd")
    assert (type(odd.value).__name__, str(odd.value)) == ("Odd", "zoe 1")
    with pytest.raises(TimeoutError, match="no answer") as late:
        await isolated.ask("timeout")
    assert isinstance(late.value.__cause__, OSError)
    assert any("isolated_" in note for note in late.value.__notes__)
    with pytest.raises(RetryLater) as again:
        await isolated.ask("later")
    assert again.value.outcome == Retry(after_s=7.0, reason="soon")
    assert await isolated.ask() == done  # the same process, all along


async def test_one_that_holds_the_lock_past_its_deadline_is_killed_one_that_crashes_is_told_of_and_both_are_replaced(
    isolated: Isolated,
) -> None:
    with pytest.raises(TimeoutError):
        await isolated.ask("burn")
    assert isolated.pool.alive == 0
    with pytest.raises(ProcessDied, match="-11"):
        await isolated.ask("segfault")
    assert isinstance(await isolated.ask(), Done)
    assert isolated.pool.alive == 1


async def test_a_crash_charges_its_own_event_alone_and_a_second_one_convicts_it(
    isolated: Isolated, migrated_database: str
) -> None:
    """OasisLMF/OasisPlatform#975"""
    async with memory_rig(migrated_database) as rig:
        rig.consumer = isolated.consumer
        rig.programs = Programs(
            alone=lambda id_: own_command("consumer", "suspect", isolated.app, str(id_)), isolated=isolated.command
        )
        process = await rig.start()
        crash = an_event(1, payload=b'{"order_id": 1, "deed": "segfault"}')
        await rig.publish(crash, *(an_event(number, payload=b"{}") for number in range(2, 8)))
        await rig.until(lambda: rig.count("consumer.dead") == 1, what="the crash to be buried", deadline_s=60.0)
        await rig.until(lambda: rig.value("SELECT count(*) FROM consumer.ledger WHERE state = 'done'") == 6)
        assert rig.rows("SELECT event_id, category FROM consumer.dead") == [(crash.id, "poison")]
        assert rig.value("SELECT max(attempts) FROM consumer.ledger WHERE state = 'done'") == 1
        assert rig.count("consumer.result") == 6
        await process.drain()
