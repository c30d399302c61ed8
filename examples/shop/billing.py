"""What follows from an order: an invoice, in the same database, and a mail, which no transaction takes back.

outbox-consumer run billing:consumer
"""

import os

import httpx
from sqlalchemy.ext.asyncio import AsyncSession

from consumer import Consumer, Context
from events import InvoiceIssued, OrderPlaced, outbox
from tables import Invoice

MAIL_URL = os.environ["MAIL_URL"]

consumer = Consumer("billing")


@consumer.on(OrderPlaced)
async def bill(event: OrderPlaced, session: AsyncSession) -> None:
    """Write the invoice, and say so: one transaction with the ledger's row, as the event's tenant."""
    session.add(Invoice(order_id=event.order_id, total_cents=event.total_cents))
    issued = InvoiceIssued(order_id=event.order_id, customer=event.customer, total_cents=event.total_cents)
    outbox.emit(session, issued, ordering_key=f"order-{event.order_id}")


async def is_sent(_event: InvoiceIssued, ctx: Context) -> bool:
    """Whether an attempt that nobody heard of again has sent the mail."""
    async with httpx.AsyncClient(timeout=10) as client:
        answer = await client.get(f"{MAIL_URL}/{ctx.idempotency_key}")
    return answer.status_code == httpx.codes.OK


@consumer.on(InvoiceIssued, ledger="leased", already_done=is_sent)
async def send(event: InvoiceIssued, ctx: Context) -> None:
    """Have it mailed: at least once, and the provider drops what it has seen or what comes too late."""
    mail = {"to": event.customer, "subject": f"Invoice for order {event.order_id}"}
    headers = {"Fencing-Token": str(ctx.fencing_token)}
    async with httpx.AsyncClient(timeout=10) as client:
        answer = await client.put(f"{MAIL_URL}/{ctx.idempotency_key}", json=mail, headers=headers)
    answer.raise_for_status()
