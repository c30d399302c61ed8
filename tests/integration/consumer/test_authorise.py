"""The app is asked before each attempt whether an event may still be handled: at first, at a retry and at a replay."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Literal

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer import Consumer, Context, Policy, RetryLater
from consumer.store.dead_list import DeadFilter
from outbox.errors import ConfigError, TransientError
from outbox.event import Event, EventModel
from outbox.tenancy import current_tenant
from tests.integration.consumer.conftest import Connect
from tests.support.dead_letters import replay
from tests.support.engine import GROUP, TYPE, Rig, an_event, memory_rig

INSERT = text("INSERT INTO effect (note) VALUES (:note)")
AT_ONCE = Policy(base_s=0.05, max_wait_s=0.05)


class OrderPlaced(EventModel, type=TYPE):
    order_id: int


@pytest.fixture
async def rig(migrated_database: str) -> AsyncIterator[Rig]:
    async with memory_rig(migrated_database) as rig:
        yield rig


def bills(rig: Rig, *, policy: Policy = AT_ONCE) -> None:
    """Have one handler that is async and one that is not."""

    @rig.consumer.on(OrderPlaced, policy=policy)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": "billed"})

    @rig.consumer.on(OrderPlaced, policy=policy)
    def thank(event: OrderPlaced, session: Session) -> None:
        session.execute(INSERT, {"note": "thanked"})


def letters(rig: Rig) -> list[tuple[str, str, int]]:
    found: list[tuple[str, str, int]] = rig.rows("SELECT category, message, attempts FROM consumer.dead ORDER BY id")
    return found


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_what_the_app_does_not_allow_is_refused_before_any_handler_and_what_it_allows_is_handled(
    rig: Rig, kind: str
) -> None:
    def is_allowed(event: Event) -> bool | str:
        assert current_tenant() == event.tenant
        return event.actor == "zoë" or "its actor has left"

    async def is_allowed_later(event: Event) -> bool | str:
        return is_allowed(event)

    rig.consumer.authorise(is_allowed if kind == "sync" else is_allowed_later)
    bills(rig)
    await rig.start()
    await rig.publish(replace(an_event(1), actor="zoë"), replace(an_event(2), actor="max"))
    await rig.until(lambda: len(rig.effects()) == 2 and letters(rig))
    await rig.until_settled()
    assert sorted(rig.effects()) == ["billed", "thanked"]
    assert letters(rig) == [("security", "its actor has left", 1)]
    assert rig.rows("SELECT handlers FROM consumer.dead") == [(["bill", "thank"],)]


@pytest.mark.parametrize("ledger", ["leased", "none"])
async def test_a_handler_with_effects_elsewhere_is_not_called_either(
    rig: Rig, ledger: Literal["leased", "none"]
) -> None:
    called: list[int] = []

    @rig.consumer.authorise
    def is_allowed(event: Event) -> bool:
        return event.actor == "zoë"

    @rig.consumer.on(OrderPlaced, ledger=ledger)
    async def bill(event: OrderPlaced) -> None:
        called.append(event.order_id)

    await rig.start()
    await rig.publish(replace(an_event(1), actor="zoë"), an_event(2))
    await rig.until(lambda: called == [1] and letters(rig))
    assert letters(rig) == [("security", "the app does not allow it", 1)]


async def test_a_replay_and_a_retry_are_asked_about_again(rig: Rig, connect: Connect) -> None:
    allowed = [True]
    tries: list[int] = []

    @rig.consumer.authorise
    def is_allowed(event: Event) -> bool:
        return allowed[-1]

    @rig.consumer.on(OrderPlaced, policy=AT_ONCE)
    async def bill(event: OrderPlaced, ctx: Context) -> None:
        tries.append(ctx.attempt)
        if len(tries) == 1:
            allowed.append(False)
            raise RetryLater("not yet")

    await rig.start()
    await rig.publish(an_event())
    await rig.until(lambda: letters(rig))
    assert letters(rig) == [("security", "the app does not allow it", 2)]
    await replay(await connect(), DeadFilter(group=GROUP))
    await rig.until(lambda: len(letters(rig)) == 2)
    assert tries == [1]
    allowed.append(True)
    await replay(await connect(), DeadFilter(group=GROUP))
    await rig.until(lambda: rig.states() == [("bill", "done", 1)])
    assert tries == [1, 1]


async def test_an_answer_that_fails_is_a_failed_attempt_and_one_that_was_forgotten_lets_nothing_pass(rig: Rig) -> None:
    asked: list[int] = []

    @rig.consumer.authorise
    async def is_allowed(event: Event) -> object:
        asked.append(1)
        if len(asked) == 1:
            raise TransientError("the directory is away")
        return None

    @rig.consumer.on(OrderPlaced, policy=AT_ONCE)
    async def bill(event: OrderPlaced) -> None:
        raise AssertionError

    await rig.start()
    await rig.publish(an_event())
    await rig.until(lambda: letters(rig))
    ((category, message, attempts),) = letters(rig)
    assert (category, attempts) == ("permanent", 2)
    assert "want True, False or a reason, got NoneType" in message


async def test_an_answer_that_never_comes_is_cut_off_at_the_handlers_deadline(rig: Rig) -> None:
    @rig.consumer.authorise
    async def is_allowed(event: Event) -> bool:
        await asyncio.Event().wait()
        return True

    @rig.consumer.on(OrderPlaced, deadline_s=0.1, policy=Policy(max_retries=0))
    async def bill(event: OrderPlaced) -> None:
        raise AssertionError

    await rig.start()
    await rig.publish(an_event())
    await rig.until(lambda: letters(rig))
    assert letters(rig)[0][0] == "exhausted"


def test_there_is_one_function_that_is_asked() -> None:
    consumer = Consumer("billing")
    consumer.authorise(bool)
    with pytest.raises(ConfigError, match="want one function for all events, got a second"):
        consumer.authorise(bool)
