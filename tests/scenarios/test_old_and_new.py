"""A deploy with old and new code at work at once: a rolling one, or one that was begun and taken back."""

from pathlib import Path

from sqlalchemy.orm import Session

from outbox import Outbox
from tests.scenarios.world import World

_APP = """
from typing import Any
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from consumer import Consumer, Context
from outbox import EventModel

class OrderPlaced(EventModel, type="shop.order.placed", version={version}):
    number: int
    {field}

consumer = Consumer("default")

@consumer.on(OrderPlaced)
async def place(event: OrderPlaced, ctx: Context, session: AsyncSession) -> None:
    await session.execute(
        text("INSERT INTO placed (key, number, by) VALUES (:key, :number, {version})"),
        {{"key": ctx.event.ordering.key, "number": event.number}},
    )
"""
_UPCAST = """
@consumer.upcast(OrderPlaced, from_version=1)
def with_currency(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "currency": "EUR"}
"""
_KEYS, _NUMBERS = 4, 12


def emit(world: World) -> None:
    """Have each key's events come by turns from an app that is deployed already and from one that is not."""
    engine = world.engine()
    apps = {version: Outbox(source=f"/shop/{version}") for version in (1, 2)}
    for number in range(1, _NUMBERS + 1):
        with Session(engine) as session, session.begin():
            for key in range(_KEYS):
                version = (number + key) % 2 + 1
                payload = {"number": number} | ({"currency": "USD"} if version > 1 else {})
                apps[version].emit(
                    session,
                    "shop.order.placed",
                    payload,
                    version=version,
                    tenant=f"tenant-{key % 2}",
                    ordering_key=f"order-{key}",
                )
    engine.dispose()


async def test_old_and_new_processes_handle_every_event_once_in_order_and_leave_no_dead_letter(
    world: World, tmp_path: Path
) -> None:
    world.execute("CREATE TABLE placed (at bigserial, key text, number int, by int)")
    directories = {version: tmp_path / f"v{version}" for version in (1, 2)}
    for version, directory in directories.items():
        directory.mkdir()
        app = _APP.format(version=version, field='currency: str = "EUR"' if version > 1 else "")
        (directory / "shop.py").write_text(app + (_UPCAST if version > 1 else ""))
    relay = world.relay()
    old = [world.consumer("shop:consumer", cwd=directories[1]) for _ in range(2)]
    emit(world)
    # Only then the new one: what it alone can read is buried by then, and holds its keys.
    await world.until_value("SELECT count(*) > 0 FROM consumer.dead", wanted=True)
    new = world.consumer("shop:consumer", cwd=directories[2])
    await world.until_value("SELECT count(*) FROM placed", _KEYS * _NUMBERS, deadline_s=60)
    await world.until_value("SELECT count(*) FROM consumer.work", 0)

    by_key = world.rows("SELECT key, array_agg(number ORDER BY at) FROM placed GROUP BY key")
    assert [numbers for _, numbers in by_key] == [list(range(1, _NUMBERS + 1))] * _KEYS
    assert world.value("SELECT count(*) FROM consumer.dead WHERE resolution IS NULL") == 0
    # Buried once at most, since no old process takes what was replayed for the new.
    assert world.value("SELECT count(*) - count(DISTINCT event_id) FROM consumer.dead") == 0
    assert [await service.end() for service in (relay, *old, new)] == [0, 0, 0, 0]
