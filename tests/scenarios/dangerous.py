"""An app whose handlers do to their process whatever the event says, and write what they have done."""

import asyncio
import ctypes
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer import Consumer, Context, Policy
from outbox.event import Event, EventModel, Ordering
from tests.support.engine import an_event

APP: Final = "tests.scenarios.dangerous:consumer"
GO: Final = "DANGEROUS_GO"
INSERT: Final = text("INSERT INTO effect (note) VALUES (:note)")
consumer = Consumer("billing", policy=Policy(max_retries=2, base_s=0.01, max_wait_s=0.02))


def _parsed(deed: str) -> str:
    if deed == "parse":
        os._exit(4)
    return deed


class OrderPlaced(EventModel, type="orders.order.placed"):
    """*deed* is what the handler does."""

    order_id: int
    deed: Annotated[str, AfterValidator(_parsed)] = ""


def an_order(number: int, deed: str = "", *, tenant: str = "acme", ordering: Ordering | None = None) -> Event:
    """An event that makes the handler do *deed*."""
    payload = json.dumps({"order_id": number, "deed": deed}).encode()
    return an_event(number, tenant=tenant, payload=payload, ordering=ordering)


@consumer.on(OrderPlaced)
async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> None:
    """Write what was handled; what it does to its process comes after that and before the commit."""
    await session.execute(INSERT, {"note": str(event.order_id)})
    ctx.log.info("handling", order_id=event.order_id, deed=event.deed, pid=os.getpid())
    if event.deed in _DEEDS:
        _DEEDS[event.deed]()
    if event.deed == "wait":
        go = Path(os.environ[GO])
        while not go.exists():
            await asyncio.sleep(0.02)
    if event.deed == "slow":
        await asyncio.sleep(0.5)


def _burn() -> None:
    while True:
        time.sleep(0.05)  # the event loop stands


def _eat() -> None:
    eaten = bytearray()
    while True:
        eaten += bytes(16 * 1024 * 1024)


_DEEDS: Final[dict[str, Callable[[], object]]] = {
    "exit": lambda: os._exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "burn": _burn,
    "eat": _eat,
}
