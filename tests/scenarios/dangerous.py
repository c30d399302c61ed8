"""An app whose handlers do to their process whatever the event says, and write what they have done."""

import asyncio
import ctypes
import os
import signal
import time
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer import Consumer, Context, Policy
from outbox.event import EventModel

GO = "DANGEROUS_GO"
INSERT = text("INSERT INTO effect (note) VALUES (:note)")
consumer = Consumer("billing", policy=Policy(max_retries=2, base_s=0.01, max_wait_s=0.02))


class OrderPlaced(EventModel, type="orders.order.placed"):
    """*deed* is what the handler does."""

    order_id: int
    deed: str = ""


@consumer.on(OrderPlaced)
async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> None:
    """Write which process has handled it; what it does to that process comes before or after."""
    await session.execute(INSERT, {"note": f"{event.order_id} {os.getpid()}"})
    ctx.log.info("handling", order_id=event.order_id, deed=event.deed, pid=os.getpid())
    match event.deed:
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "burn":
            while True:
                time.sleep(0.05)  # the event loop stands
        case "wait":
            go = Path(os.environ[GO])
            while not go.exists():
                await asyncio.sleep(0.02)
        case _:
            pass
