"""Input that is wrong, in the middle of work: it ends where people can see it, and can be put right."""

import json
from pathlib import Path

from sqlalchemy.orm import Session

from outbox import Outbox
from tests.scenarios.world import World

_FIRST = """
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from consumer import Consumer

consumer = Consumer("default")

@consumer.on("shop.order.cancelled")
async def cancel(event: dict, session: AsyncSession) -> None:
    await session.execute(text("INSERT INTO handled (what) VALUES ('cancelled')"))
"""
_SECOND = (
    _FIRST
    + """
@consumer.on("shop.order.placed")
async def place(event: dict, session: AsyncSession) -> None:
    await session.execute(text("INSERT INTO handled (what) VALUES ('placed')"))
"""
)


async def test_an_event_that_nobody_knows_is_buried_in_sight_and_handled_once_somebody_does(
    world: World, tmp_path: Path
) -> None:
    world.execute("CREATE TABLE handled (at bigserial, what text NOT NULL)")
    (tmp_path / "shop.py").write_text(_FIRST)
    relay, consumer = world.relay(), world.consumer("shop:consumer", cwd=tmp_path)
    engine = world.engine()
    with Session(engine) as session, session.begin():
        for what in ("placed", "cancelled"):
            outbox = Outbox(source="/shop")
            outbox.emit(session, f"shop.order.{what}", {"order_id": 7}, tenant="acme", ordering_key="order 7")
    engine.dispose()
    await world.until_value("SELECT count(*) FROM consumer.dead", 1)
    # The second waits for the first: they have a key in common.
    await world.until_value("SELECT count(*) FROM consumer.work WHERE reason = 'waiting'", 1)

    code, output = await world.command("outbox", "dead", "list", "--type", "shop.order.placed")
    assert code == 0
    (line,) = output.splitlines()[1:]
    assert "unknown_type" in line
    assert "event type: want one with a handler here, got shop.order.placed" in line
    dead_id = line.split()[0]
    code, output = await world.command("outbox", "dead", "list", "--json")
    (letter,) = json.loads(output)
    assert (letter["tenant"], letter["tier"], letter["category"]) == ("acme", "standard", "unknown_type")
    code, output = await world.command("outbox-consumer", "status")
    assert code == 0
    assert "! 1 open dead letter" in output
    assert "unknown_type" in output
    assert "order 7" in output
    code, output = await world.command("outbox-consumer", "status", "--json")
    assert json.loads(output)["dead"][0]["category"] == "unknown_type"

    # Nothing that replay asks for is there yet, and saying what would be done does nothing.
    code, output = await world.command("outbox", "dead", "replay", dead_id, "--dry-run")
    assert (code, output) == (0, f"would replay 1 dead letter: {dead_id}\n")
    assert world.value("SELECT count(*) FROM consumer.dead WHERE resolution IS NULL") == 1
    assert await consumer.end() == 0
    (tmp_path / "shop.py").write_text(_SECOND)
    consumer = world.consumer("shop:consumer", cwd=tmp_path, replay_unknown_per_s="0")
    code, output = await world.command("outbox", "dead", "replay", dead_id, "--actor", "zoë")
    assert (code, output) == (0, "replayed 1, refused 0\n")
    await world.until_value("SELECT array_agg(what ORDER BY at) FROM handled", ["placed", "cancelled"])
    assert world.rows("SELECT resolution, resolved_by FROM consumer.dead") == [("replayed", "zoë")]
    code, output = await world.command("outbox", "dead", "list")
    assert (code, output) == (0, "no open dead letters in group default\n")
    assert "nothing is stuck" in (await world.command("outbox-consumer", "status"))[1]
    assert [await relay.end(), await consumer.end()] == [0, 0]


async def test_what_reaches_a_lane_and_is_no_event_of_ours_is_buried_and_stops_nobody(world: World) -> None:
    relay, consumer = world.relay(), world.consumer()
    for service in (relay, consumer):
        await service.until_ready()
    # Past the session helper, which refuses all of these: as another program with the table's rights would write it.
    world.execute(_INSERT.format(id="00000000-0000-7000-8000-000000000001", payload="no json"))
    world.execute(_INSERT.format(id="00000000-0000-7000-8000-000000000002", payload='{"posting_id": NaN}'))
    world.execute(_INSERT.format(id="00000000-0000-7000-8000-000000000003", payload='{"posting_id": 7}'))
    good = "0192f0c1-2345-7abc-8def-0123456789ab"
    world.execute(_INSERT.format(id="00000000-0000-7000-8000-000000000004", payload=f'{{"posting_id": "{good}"}}'))
    await world.until_value("SELECT count(*) FROM effect", 1)
    await world.until_value("SELECT count(*) FROM consumer.dead WHERE category = 'invalid'", 3)
    for service in (relay, consumer):
        assert await service.is_ready()
        assert await service.end() == 0


_INSERT = """
    INSERT INTO outbox.event (id, bucket, tier, tenant, tenant_hash, type, data_version, source, content_type, payload)
    VALUES ('{id}', 0, 1, 'acme', 0, 'bank.noted', 1, '/elsewhere', 'application/json', '{payload}')
"""
