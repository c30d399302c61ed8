"""An event that cannot be published, in the middle of its key: the real processes wait for it, and for our word."""

import json
from uuid import uuid4

import pytest
from sqlalchemy.orm import Session

from outbox import Outbox
from tests.scenarios.world import World

_LIMIT_BYTES = 4_000
_HANDLED = "SELECT array_agg(number ORDER BY at) FROM effect WHERE account = 'a'"


@pytest.mark.parametrize("decision", ["retry", "discard"])
async def test_what_follows_an_event_that_is_dead_in_the_relay_waits_until_it_is_retried_or_discarded(
    world: World, decision: str
) -> None:
    """namastack/namastack-outbox#9, MassTransit/MassTransit#3512: the successor was handled without it."""
    relay, consumer = world.relay(body_bytes_max=str(_LIMIT_BYTES)), world.consumer()
    _emit(world, 1, 2, 3)
    await world.until_value(_HANDLED, [1])
    await world.until_value("SELECT count(*) FROM effect WHERE account = 'b'", 1)  # another key waits for nothing
    await world.until_value("SELECT count(*) FROM consumer.work WHERE reason = 'waiting'", 1)
    code, output = await world.command("outbox-relay", "status")
    said = "1 event dead, not published (too_large): outbox deferred list --group default"
    assert (code, said in output) == (0, True)
    code, output = await world.command("outbox", "deferred", "list", "--json")
    (dead,) = json.loads(output)
    last = world.value("SELECT number FROM outbox.ordering WHERE ordering_key = 'a'")
    assert (dead["state"], dead["ordering_key"], dead["key_number"]) == ("dead", "a", last - 1)
    code, output = await world.command("outbox-consumer", "status")
    said = f"waits for event {last - 1} (not here yet: see outbox-relay status and outbox deferred list)"
    assert (code, said in output) == (0, True)

    # With no relay there: what is decided happens when there is one.
    assert await relay.end() == 0
    arguments = ["retry", dead["id"]] if decision == "retry" else ["discard", dead["id"], "--yes"]
    code, output = await world.command("outbox", "deferred", *arguments)
    assert code == 0
    done = {"retry": "due now: 1, refused: 0", "discard": "discarded: 1, leaving a void: 1, refused: 0"}
    assert output.splitlines()[-1] == done[decision]
    relay = world.relay()
    _emit(world, 4)
    await world.until_value(_HANDLED, [1, 2, 3, 4] if decision == "retry" else [1, 3, 4])
    await world.until_value("SELECT count(*) FROM outbox.deferred", 0)
    await world.until_idle(consumer)
    assert "nothing is stuck" in (await world.command("outbox-consumer", "status"))[1]
    assert world.value("SELECT count(*) FROM consumer.dead") == 0
    ((action, detail),) = world.rows("SELECT action, detail FROM outbox.audit")
    assert (action, dead["id"] in json.dumps(detail)) == (f"deferred.{decision}", True)
    assert [await service.end() for service in (relay, consumer)] == [0, 0]


def _emit(world: World, *numbers: int) -> None:
    """Events of one key, the second of which is over the limit, and one of another key behind them."""
    engine, outbox = world.engine(), Outbox(source="/bank")
    with Session(engine) as session, session.begin():
        for number in numbers:
            filler = "x" * _LIMIT_BYTES if number == 2 else ""
            posted: dict[str, str | int] = {
                "posting_id": str(uuid4()),
                "account": "a",
                "number": number,
                "filler": filler,
            }
            outbox.emit(session, "bank.posted", posted, tenant="acme", ordering_key="a")
        posted = {"posting_id": str(uuid4()), "account": "b", "number": 1}
        outbox.emit(session, "bank.posted", posted, tenant="acme", ordering_key=f"b {numbers[0]}")
    engine.dispose()
