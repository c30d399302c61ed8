"""The group's own queues, and the copies of its dead letters: what is not an event's way to its handler."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import unquote

import structlog

from consumer.decide.delivery import Refused, open_envelope
from consumer.decide.report import sentence
from consumer.engine.loop import Engine
from consumer.outcome import DeadCategory
from consumer.ports import Broker, Delivery, Exchange
from consumer.store import dead, directory
from consumer.store.dead import DeadLetter, NewDead
from consumer.store.desk import Desk
from consumer.store.stored import Stored, of_event, storable, unreadable
from outbox import topology
from outbox.errors import BrokerUnavailable, Unreadable
from outbox.event import Tier, new_event_id
from outbox.naming import TENANT_CHARS_MAX, Lane
from outbox.wire import Message

_BATCH: Final = 100
_POLL_S: Final = 1.0
_COPY_S: Final = 5.0
_SERVICE_PREFETCH: Final = 100
_TIERS: Final = {tier.label: tier for tier in Tier}


class Service:
    """Each job says after how many seconds to do it again."""

    def __init__(
        self, *, engine: Engine, broker: Broker, exchange: Exchange, desk: Desk, copies: Desk, payload_bytes_max: int
    ) -> None:
        """*copies* is for publishing dead letters, which may take as long as the broker does."""
        self._engine = engine
        self._broker = broker
        self._exchange = exchange
        self._desk = desk
        self._copies = copies
        self._payload_bytes_max = payload_bytes_max
        self._mark: str | None = None
        self._directory: asyncio.Queue[Delivery] = asyncio.Queue()
        self._refused: asyncio.Queue[Delivery] = asyncio.Queue()
        engine.service[topology.directory_queue(engine.group)] = self._directory
        engine.service[topology.refused_queue(engine.group)] = self._refused
        self._log = structlog.get_logger("consumer.engine.service")

    async def find_lanes(self) -> float:
        """Attach to every lane that any process of the group has heard of, and to the group's own queues.

        What another process has heard is gone is left here too. Thousands of lanes are read only when they are others.
        """
        for queue in () if self._engine.is_draining else self._engine.service:
            await self._broker.attach(queue, prefetch=_SERVICE_PREFETCH)
        engine = self._engine
        before, known = set[Lane](), list[Lane]()
        async with self._desk.use() as connection:
            mark = await directory.mark(connection, engine.group)
            if mark != self._mark:
                before = engine.lanes.standing()
                known = [one.lane for one in await directory.lanes(connection, engine.group)]
        self._mark = None if engine.is_suspended else mark
        await engine.learn(known)
        await engine.leave(before.difference(known))
        return _POLL_S

    async def call_the_roll(self) -> None:
        """Ask the relays which lanes there are, again and again until the broker has taken the question."""
        message = Message(
            message_id=str(new_event_id()),
            type="outbox.roll_call",
            app_id="outbox-consumer",
            content_type="text/plain",
            headers={},
            body=b"",
        )
        while True:
            try:
                await self._exchange.publish(topology.ROLL_CALL_EXCHANGE, self._engine.group, message)
            except BrokerUnavailable:
                await asyncio.sleep(_POLL_S)
            else:
                return

    async def read_directory(self) -> float:
        """Keep what the relays announce, and attach to it."""
        batch = await _batch(self._directory)
        announced = []
        for delivery in batch:
            try:
                announced.append(directory.read(delivery.message.body, group=self._engine.group))
            except Unreadable as error:
                # Nothing follows from it, and whoever wrote it will not take it back.
                self._log.error("announcement not understood", reason=str(error))
        try:
            async with self._desk.use() as connection, connection.transaction():
                await directory.learn(connection, announced)
        except BaseException:
            _put_back(self._directory, batch)
            raise
        for delivery in batch:
            self._engine.acknowledge(delivery.receipt)
        latest = {one.lane: one.is_gone for one in announced}
        if any(latest.values()):
            self._mark = None  # that it stands again may be told to another process
        await self._engine.learn([lane for lane, is_gone in latest.items() if not is_gone])
        await self._engine.leave([lane for lane, is_gone in latest.items() if is_gone])
        return 0.0

    async def collect_refused(self) -> float:
        """Bury what the broker itself has dead-lettered."""
        batch = await _batch(self._refused)
        try:
            async with self._desk.use() as connection, connection.transaction():
                for delivery in batch:
                    await dead.put(connection, self._refusal(delivery))
        except BaseException:
            _put_back(self._refused, batch)
            raise
        self._engine.restraint.buried(len(batch))
        for delivery in batch:
            self._log.warning("refused by the broker", routing_key=delivery.routing_key)
            self._engine.acknowledge(delivery.receipt)
        self._engine.dead_stored.set()
        return 0.0

    async def copy_dead(self) -> float:
        """Publish a copy of each dead letter that has none."""
        async with self._copies.use() as connection, connection.transaction():
            letters = await dead.unpublished(connection, self._engine.group, limit=_BATCH)
            for letter in letters:
                lane = Lane(group=letter.summary.group, tier=letter.stored.tier, tenant=letter.stored.tenant)
                await self._exchange.publish(topology.DEAD_EXCHANGE, lane.routing_key, _copy(letter))
            await dead.mark_published(connection, [letter.summary.id for letter in letters])
        return 0.0 if len(letters) == _BATCH else _COPY_S

    def _refusal(self, delivery: Delivery) -> NewDead:
        lane = _lane(delivery.routing_key, self._engine.group)
        envelope = open_envelope(delivery.message, lane, payload_bytes_max=self._payload_bytes_max)
        report = sentence(f"the broker refused it: {_reason(delivery.message)}")
        stored: Stored
        if isinstance(envelope, Refused):
            stored = unreadable(delivery.message, tier=lane.tier, tenant=lane.tenant)
        else:
            stored = of_event(envelope, delivery.message)
        return NewDead(
            group=self._engine.group,
            event_id=None if isinstance(envelope, Refused) else envelope.id,
            stored=stored,
            category=DeadCategory.REFUSED,
            message=report.message,
            fingerprint=report.fingerprint,
        )


async def _batch(queue: "asyncio.Queue[Delivery]") -> Sequence[Delivery]:
    """Wait for one, and take those that came with it."""
    batch = [await queue.get()]
    while len(batch) < _BATCH and not queue.empty():
        batch.append(queue.get_nowait())
    return batch


def _put_back(queue: "asyncio.Queue[Delivery]", batch: Sequence[Delivery]) -> None:
    """Keep what could not be written. What came by a lost channel is written twice, which changes nothing."""
    for delivery in batch:
        queue.put_nowait(delivery)


def _lane(routing_key: str, group: str) -> Lane:
    """The lane that *routing_key* names. Of a tenant that is known by its digest alone, the digest is its name."""
    _, _, rest = routing_key.partition(f"{group}.")
    tier, _, tenant = rest.partition(".")
    return Lane(
        group=group,
        tier=_TIERS.get(tier, Tier.STANDARD),
        tenant=storable(unquote(tenant.replace("+", "%"))[:TENANT_CHARS_MAX]) or "?",
    )


def _reason(message: Message) -> str:
    """Why the broker did it, by the first entry of its own header."""
    deaths = message.headers.get("x-death")
    first = deaths[0] if isinstance(deaths, list) and deaths else None
    reason = first.get("reason") if isinstance(first, dict) else None
    return reason if isinstance(reason, str) else "unknown"


def _copy(letter: DeadLetter) -> Message:
    message = letter.stored.message
    headers = {name: value for name, value in message.headers.items() if isinstance(value, str | int)}
    headers |= {
        "fairpost-dead-category": letter.summary.category.value,
        "fairpost-dead-reason": letter.summary.message,
        "fairpost-dead-fingerprint": letter.summary.fingerprint,
        "fairpost-dead-attempts": str(letter.summary.attempts),
        "fairpost-dead-at": letter.summary.dead_at.isoformat(),
    }
    return replace(message, headers=_without_brokers(headers))


def _without_brokers(headers: dict[str, str | int]) -> dict[str, str | int]:
    """Leave out what the broker wrote, or would act upon."""
    return {
        name: value
        for name, value in headers.items()
        if not name.lower().startswith("x-") and name not in {"CC", "BCC"}
    }
