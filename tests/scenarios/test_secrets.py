"""A secret in payloads, and everything that an operator can read."""

import json
from collections.abc import Iterable

import aiormq
from sqlalchemy.orm import Session

from outbox import Outbox
from outbox.topology import DEAD_EXCHANGE
from tests.scenarios import canary
from tests.scenarios.world import World
from tests.support.wait import until

_SECRET = "s3cr3t-canary-4556737586899855"
# Any part of it would do harm too.
_PARTS = ("s3cr3t", "canary-4", "4556737586899855")
_CONSUMER_BYTES_MAX, _RELAY_BYTES_MAX = 20_000, 40_000
_TOLD = (
    "SELECT concat_ws(' ', error_class, message, fingerprint) FROM consumer.dead",
    "SELECT trace FROM consumer.dead_trace",
    "SELECT last_error FROM consumer.work",
    "SELECT concat_ws(' ', category, reason) FROM outbox.deferred",
)


async def test_a_secret_in_a_payload_is_in_no_log_no_status_and_no_dead_letter_that_is_told_of(world: World) -> None:
    """PostgreSQL's error details, SQLAlchemy's parameters and most messages that people write repeat values."""
    world.execute(canary.MAKE)
    async with aiormq.connect(world.rabbitmq_url) as connection:
        channel = await connection.channel()
        relay = world.relay(body_bytes_max=str(_RELAY_BYTES_MAX), log_level="debug")
        consumer = world.consumer(
            "tests.scenarios.canary:consumer", payload_bytes_max=str(_CONSUMER_BYTES_MAX), log_level="debug"
        )
        for service in (relay, consumer):
            await service.until_ready()
        copies = (await channel.queue_declare(exclusive=True)).queue or ""
        await channel.queue_bind(copies, DEAD_EXCHANGE, routing_key="#")

        _emit(world)
        await world.until_value("SELECT count(*) FROM consumer.dead", len(canary.FAILING) + 2)
        await world.until_value("SELECT count(*) FROM consumer.work", 2)
        await world.until_value("SELECT count(*) FROM outbox.deferred WHERE state = 'dead'", 1)

        async def are_copied() -> bool:
            declared = await channel.queue_declare(copies, passive=True)
            return declared.message_count == len(canary.FAILING) + 2

        await until(are_copied, deadline_s=20.0, what="copies of all dead letters")
        headers = []
        for _ in range(len(canary.FAILING) + 2):
            message = await channel.basic_get(copies, no_ack=True)
            headers.append(json.dumps(message.header.properties.headers, default=str))

    told = {"headers of copies": "\n".join(headers)}
    for query in _TOLD:
        told[query] = "\n".join(str(value) for (value,) in world.rows(query))
    for command in _commands(world):
        code, told[" ".join(command)] = await world.command(*command)
        assert code == 0, told[" ".join(command)]
    for service in (relay, consumer):
        assert await service.end() == 0
        told[f"log of {service.process.name}"] = service.process.output
    assert all(told.values()), "something was not told of at all"
    assert [(part, where) for where, text in told.items() for part in _PARTS if part in text] == []
    # And the one command that is asked for it shows it.
    (dead_id,) = next(iter(world.rows("SELECT id FROM consumer.dead WHERE type = 'canary.raises'")))
    assert _SECRET in (await world.command("outbox", "dead", "show", str(dead_id), "--payload"))[1]


def _emit(world: World) -> None:
    engine = world.engine()
    outbox = Outbox(source="/canary")
    secret = {"secret": _SECRET}
    with Session(engine) as session, session.begin():
        for name in canary.FAILING:
            outbox.emit(session, f"canary.{name}", secret, tenant="acme")
        outbox.emit(session, "canary.unheard_of", secret, tenant="acme")
        outbox.emit(session, "canary.numbered", {"number": _SECRET}, tenant="acme")
        outbox.emit(session, "canary.raises", _SECRET.encode(), content_type="text/plain", tenant="acme")
        for size in (_CONSUMER_BYTES_MAX, _RELAY_BYTES_MAX):
            outbox.emit(session, "canary.raises", {**secret, "padding": "x" * size}, tenant="acme")
    engine.dispose()


def _commands(world: World) -> Iterable[tuple[str, ...]]:
    yield ("outbox", "dead", "list")
    yield ("outbox", "dead", "list", "--json")
    for (dead_id,) in world.rows("SELECT id FROM consumer.dead WHERE type IN ('canary.violates', 'canary.chains')"):
        yield ("outbox", "dead", "show", str(dead_id), "--trace")
    for name in ("outbox-relay", "outbox-consumer"):
        yield (name, "status")
        yield (name, "status", "--json")
