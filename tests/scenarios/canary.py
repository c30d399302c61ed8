"""Handlers that fail in every way that could repeat what stands in a payload."""

from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from consumer import Consumer, Context, DeadLetter, Outcome, Policy, Retry
from outbox import EventModel

MAKE: Final = (
    "CREATE TABLE card (number text UNIQUE); INSERT INTO card SELECT 'card of ' || n FROM generate_series(1, 3) n"
)
FAILING: Final = ("violates", "casts", "raises", "chains", "buries", "waits", "postpones")

consumer = Consumer("default", policy=Policy(max_retries=0))
_PATIENT: Final = Policy(max_retries=5, base_s=60.0)


class Numbered(EventModel, type="canary.numbered"):
    """An event whose payload will not fit."""

    number: int


@consumer.on(Numbered)
async def never(event: Numbered) -> None:
    """Take what fits, which nothing does."""


@consumer.on("canary.violates")
async def violates(event: dict[str, str], session: AsyncSession) -> None:
    """PostgreSQL's DETAIL repeats the key."""
    for _ in range(2):
        await session.execute(sa.text("INSERT INTO card VALUES (:number)"), {"number": event["secret"]})


@consumer.on("canary.casts")
async def casts(event: dict[str, str], session: AsyncSession) -> None:
    """PostgreSQL's message itself repeats the value."""
    await session.execute(sa.text("SELECT CAST(CAST(:number AS text) AS integer)"), {"number": event["secret"]})


@consumer.on("canary.raises")
async def raises(event: dict[str, str]) -> None:
    """People write messages like this one."""
    raise ValueError(f"card {event['secret']} of {event} was refused")


@consumer.on("canary.chains")
def chains(event: dict[str, str]) -> None:
    """The cause tells it, in a thread."""
    try:
        raise KeyError(event["secret"])
    except KeyError as error:
        raise RuntimeError(event["secret"] + " failed") from error


@consumer.on("canary.buries")
async def buries(event: dict[str, str]) -> Outcome:
    """The reason is an app's own text."""
    return DeadLetter(reason=f"no such card: {event['secret']}")


@consumer.on("canary.waits", policy=_PATIENT)
async def waits(event: dict[str, str]) -> None:
    """Fail, and be tried again much later."""
    raise TimeoutError(f"no answer about {event['secret']}")


@consumer.on("canary.postpones", policy=_PATIENT)
async def postpones(event: dict[str, str], ctx: Context) -> Outcome:
    """Ask for it."""
    ctx.log.info("asked again")
    return Retry(reason=f"{event['secret']} is locked")
