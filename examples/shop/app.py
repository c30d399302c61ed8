"""The shop: orders come in by HTTP, and each is committed together with the event that tells of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from database import engine, sessions
from events import OrderPlaced, outbox
from outbox import IdempotencyConflict, bind_tenant
from tables import Invoice, Line, Order


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """Close the connections at the end."""
    yield
    await engine.dispose()


app = FastAPI(title="shop", lifespan=lifespan)

# A real app takes the tenant from whoever has logged in, never from what the client may write.
TenantId = Annotated[str, Header(alias="X-Tenant-ID", pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
IdempotencyKey = Annotated[str, Header(alias="Idempotency-Key", min_length=1, max_length=200)]


async def session_of(tenant: TenantId) -> AsyncIterator[AsyncSession]:
    """One transaction of one tenant, for one request."""
    async with sessions.begin() as session:
        bind_tenant(session, tenant)
        yield session


# scope="function": the transaction ends before the answer is sent. With FastAPI's default, "request", the customer
# would read 201 first, and an order whose COMMIT fails would never have been.
Session = Annotated[AsyncSession, Depends(session_of, scope="function")]


# PostgreSQL's text holds every character but NUL.
_STORABLE = r"^[^\x00]*$"


class LineIn(BaseModel):
    """One article, as it is ordered and shown."""

    model_config = ConfigDict(from_attributes=True)

    article: Annotated[str, Field(min_length=1, max_length=100, pattern=_STORABLE)]
    quantity: Annotated[int, Field(ge=1, le=1_000)]
    unit_cents: Annotated[int, Field(ge=0, le=10_000_000)]


class OrderIn(BaseModel):
    """What is asked for."""

    customer: Annotated[str, Field(min_length=1, max_length=200, pattern=_STORABLE)]
    lines: Annotated[list[LineIn], Field(min_length=1, max_length=100)]


class OrderOut(OrderIn):
    """What was ordered."""

    model_config = ConfigDict(from_attributes=True)

    id: int


class InvoiceOut(BaseModel):
    """What was billed."""

    model_config = ConfigDict(from_attributes=True)

    order_id: int
    total_cents: int


@app.exception_handler(IdempotencyConflict)
async def conflict(_request: Request, error: Exception) -> JSONResponse:
    """Answer a key that was used for something else; COMMIT found out, and nothing was committed."""
    return JSONResponse({"detail": str(error)}, status_code=409)


@app.post("/orders", status_code=201)
async def place(wanted: OrderIn, key: IdempotencyKey, session: Session, response: Response) -> OrderOut:
    """Place an order; the same key again gives the same order, with 200."""
    # Of two requests with one key the second waits here until the first has committed, and then finds its order.
    order_id = await session.scalar(
        insert(Order)
        .values(idempotency_key=key, customer=wanted.customer)
        .on_conflict_do_nothing(index_elements=["tenant_id", "idempotency_key"])
        .returning(Order.id)
    )
    if order_id is None:
        return await _again(wanted, key, session, response)
    lines = [Line(order_id=order_id, number=number, **line.model_dump()) for number, line in enumerate(wanted.lines, 1)]
    session.add_all(lines)
    total_cents = sum(line.quantity * line.unit_cents for line in wanted.lines)
    placed = OrderPlaced(order_id=order_id, customer=wanted.customer, total_cents=total_cents)
    outbox.emit(session, placed, ordering_key=f"order-{order_id}", idempotency_key=key)
    return OrderOut(id=order_id, **wanted.model_dump())


@app.get("/orders")
async def orders(session: Session) -> list[OrderOut]:
    """The tenant's orders: row-level security leaves no others."""
    return [OrderOut.model_validate(one) for one in await session.scalars(select(Order).order_by(Order.id).limit(100))]


@app.get("/orders/{order_id}")
async def order(order_id: int, session: Session) -> OrderOut:
    """One order; another tenant's does not exist."""
    found = await session.get(Order, order_id)
    if found is None:
        raise HTTPException(404, "no such order")
    return OrderOut.model_validate(found)


@app.get("/invoices")
async def invoices(session: Session) -> list[InvoiceOut]:
    """What billing has made of the tenant's orders so far."""
    return [InvoiceOut.model_validate(one) for one in await session.scalars(select(Invoice).order_by(Invoice.id))]


@app.get("/health")
async def health() -> dict[str, str]:
    """For whoever watches this process; asks nobody else."""
    return {"status": "ok"}


async def _again(wanted: OrderIn, key: str, session: AsyncSession, response: Response) -> OrderOut:
    """The order that was placed with *key*, if it was this one."""
    found = OrderOut.model_validate(await session.scalar(select(Order).where(Order.idempotency_key == key)))
    if found.model_dump(exclude={"id"}) != wanted.model_dump():
        raise HTTPException(409, "this Idempotency-Key was used for another order")
    response.status_code = 200
    return found
