"""What runs in the wire thread: a connection that takes messages, kept open for ever, and the lease on what it took.

Wakes come by a connection of their own. They only make it quicker: every queue is looked at again and again.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from typing import Final

import structlog

from consumer.ports import Delivery, LostBecause, Receipt
from consumer.postgres import claims, leases
from consumer.postgres.claims import Claimed, Place
from consumer.postgres.lanes import Lanes
from consumer.threaded.talk import Attach, ChannelLost, Command, Connected, Detach, Event, QueueLost, Settle, Stop
from consumer.threaded.thread import Mailbox
from outbox.backoff import Jitter, backoff_s
from outbox.errors import BrokerUnavailable, OutboxError
from outbox.queues import standing
from outbox.queues.session import connect, deadline
from outbox.queues.wakes import WAKE_CHANNEL, Wake, WakeKind, read, wake
from outbox.shell import severed
from outbox.shell.notifications import notifications
from outbox.shell.severed import Connection

_log: Final = structlog.get_logger(__name__)
_EPOCHS: Final = count(1)

_LANES_AT_ONCE: Final = 500
_RECONNECT_BASE_S: Final = 0.05
_RECONNECT_MAX_S: Final = 3.0
_LOOK_S: Final = 1.0
_LOOK_DEAF_S: Final = 0.1
# A look costs as much as there are queues, and rows at their heads that vacuum may not remove: a part of the time.
_LOOK_PART: Final = 20
_VERIFY_S: Final = 5.0
_FORGET_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the queues are, how the session is shown there, and for how long it may stand still."""

    url: str
    name: str
    lease_s: float = 15.0

    @property
    def wait_s(self) -> float:
        """How long a statement may take: after a renewal that took so long the lease is still good."""
        return self.lease_s / 3


@dataclass(slots=True, eq=False, kw_only=True)
class _Session:
    """One connection, its lease, and when what is due."""

    connection: Connection
    token: int
    epoch: int
    renew_at: float
    look_at: float = 0.0
    verify_at: float = 0.0
    forget_at: float = 0.0
    dead: Sequence[int] = ()
    is_hearing: bool = False


class Wire:
    """Everything but *commands* is used on the wire thread's loop alone."""

    def __init__(self, address: Address, *, tell: Callable[[Sequence[Event]], None]) -> None:
        """*tell* is given what happened, in order, some at a time; it returns at once."""
        self.commands: Mailbox[Command] = Mailbox(self._obey)
        self._address = address
        self._tell = tell
        self._lanes = Lanes()
        self._session: _Session | None = None
        self._done: list[Place] = []
        self._back: list[Place] = []
        self._former: list[tuple[int, Sequence[Place]]] = []  # of lost connections: token, and what was settled
        self._news = asyncio.Event()
        self._is_stopping = False
        self._rng = random.Random()  # noqa: S311 - it spreads reconnects, and hides nothing

    async def run(self) -> None:
        """Stay connected until told to stop; then write what was settled, hand back the rest, and close."""
        self.commands.open(asyncio.get_running_loop())
        losses = 0
        while not self._is_stopping:
            began = self._now()
            try:
                await self._connect_and_serve()
            except Exception as error:  # noqa: BLE001 - nobody hears of this thread's end
                if not isinstance(error, OutboxError):
                    _log.error("broker connection failed", exc_info=error)
                losses = 1 if self._now() - began > _RECONNECT_MAX_S else losses + 1
                _log.warning("broker not reached" if losses > 1 else "broker lost", reason=str(error))
            if not self._is_stopping:
                pause_s = backoff_s(
                    max(1, losses), base_s=_RECONNECT_BASE_S, cap_s=_RECONNECT_MAX_S, jitter=Jitter.FULL, rng=self._rng
                )
                await self._wait(pause_s)

    # Commands.

    def _obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Settle():
                    self._settle(command)
                case Attach():
                    self._lanes.attach(command.queue, prefetch=command.prefetch, is_extra=command.is_extra)
                case Detach():
                    self._lanes.detach(command.queue, is_extra=command.is_extra)
                case Stop():
                    self._is_stopping = True
        self._news.set()

    def _settle(self, command: Settle) -> None:
        for receipt in command.receipts:
            if self._session is None or receipt.epoch != self._session.epoch:
                continue  # it is handed out again, or has been
            place = self._lanes.settle(receipt.tag, is_back=command.requeue)
            if place is not None:
                (self._back if command.requeue else self._done).append(place)

    # The connection.

    async def _connect_and_serve(self) -> None:
        address = self._address
        connection = await connect(address.url, name=address.name, within_s=address.wait_s, may_forget=True)
        try:
            session = await self._begin(connection)
            hearing = asyncio.create_task(self._hear(session))
            try:
                while not self._is_stopping:
                    await self._work(session)
                await self._end(session)
            finally:
                hearing.cancel()
                await asyncio.gather(hearing, return_exceptions=True)
                self._lose(session)
        finally:
            await severed.close(connection)

    async def _begin(self, connection: Connection) -> _Session:
        """A session with a lease of its own, once those of lost connections are done with."""
        lease_s, now = self._address.lease_s, self._now()
        while self._former:
            token, done = self._former[0]
            async with self._limit(connection):
                await claims.settle(connection, token, done)
                await leases.run_out(connection, token)
            self._former.pop(0)
        async with self._limit(connection):
            token = await leases.begin(connection, lease_s=lease_s)
        self._session = _Session(
            connection=connection,
            token=token,
            epoch=next(_EPOCHS),
            renew_at=now + lease_s / 3,
            forget_at=now + _FORGET_S,
        )
        self._tell([Connected(is_connected=True)])
        return self._session

    async def _end(self, session: _Session) -> None:
        """Write what was settled, hand back the rest, and end the lease: nobody has to wait for it to run out."""
        self._back += self._lanes.held
        await self._write(session)
        async with self._limit(session.connection):
            await leases.end(session.connection, session.token)

    def _lose(self, session: _Session) -> None:
        self._session = None
        # Not handed back by name: what the last claim took, if its answer was lost, is known by its token alone.
        self._former.append((session.token, [*self._done]))
        self._done.clear()
        self._back.clear()
        self._lanes.lose()
        self._tell([ChannelLost(epoch=session.epoch), Connected(is_connected=False)])

    # One step after the other.

    async def _work(self, session: _Session) -> None:
        """Keep the lease, look where it is time to, write what was settled and take what there is; then wait."""
        self._news.clear()
        if self._back:
            await self._write(session)
        now = self._now()
        if now >= session.renew_at:
            await self._renew(session, now)
        if self._lanes.unknown():
            await self._resolve(session, self._lanes.unknown())
        if now >= session.look_at:
            await self._look(session, now)
        if not await self._take(session):
            await self._wait(min(session.renew_at, session.look_at) - self._now())

    async def _write(self, session: _Session) -> None:
        while self._done or self._back:
            done, back = [*self._done], [*self._back]
            async with self._limit(session.connection):
                if done:
                    await claims.settle(session.connection, session.token, done)
                if back:
                    await claims.hand_back(session.connection, session.token, back)
                    wakes = [Wake(queue_id=place.queue_id, kind=WakeKind.BACK) for place in back]
                    await wake(session.connection, wakes)
            # Kept until here: what a lost connection leaves unwritten is written by the next.
            del self._done[: len(done)], self._back[: len(back)]

    async def _renew(self, session: _Session, now: float) -> None:
        async with self._limit(session.connection):
            is_ours = await leases.renew(session.connection, session.token, lease_s=self._address.lease_s)
        if not is_ours:
            raise BrokerUnavailable(f"lease: want it renewed within {self._address.lease_s:g} s, got it run out")
        session.renew_at = now + self._address.lease_s / 3

    async def _resolve(self, session: _Session, queues: Sequence[str]) -> None:
        async with self._limit(session.connection):
            ids = await standing.ids(session.connection, queues)
        lost = self._lanes.resolve(queues, dict(ids))
        if lost:
            self._tell([QueueLost(queue=queue, because=LostBecause.MISSING) for queue in lost])

    async def _look(self, session: _Session, now: float) -> None:
        """Look at every queue: for what nobody told of, and for what the dead held."""
        async with self._limit(session.connection):
            session.dead = await leases.dead(session.connection)
            if now >= session.forget_at:
                await leases.forget_dead(session.connection)
                session.forget_at = now + _FORGET_S
        if now >= session.verify_at:
            await self._resolve(session, self._lanes.known())
            session.verify_at = now + _VERIFY_S
        self._lanes.stir_all()
        # Of many queues these are the first; the others follow, step by step, with the lease kept in between.
        await self._take(session)
        took_s = self._now() - now
        session.look_at = self._now() + max(_LOOK_S if session.is_hearing else _LOOK_DEAF_S, took_s * _LOOK_PART)

    async def _take(self, session: _Session) -> bool:
        """Write what was settled and take what there is room for; False if there was neither."""
        wishes, done = self._lanes.wishes(most=_LANES_AT_ONCE), [*self._done]
        if not wishes and not done:
            return False
        async with self._limit(session.connection):
            if wishes:
                claimed = await claims.claim(session.connection, session.token, wishes, dead=session.dead, done=done)
            else:
                claimed = []
                await claims.settle(session.connection, session.token, done)
        del self._done[: len(done)]
        taken, homeless = self._lanes.take(wishes, claimed)
        self._back += homeless
        if taken:
            self._tell([_delivery(one, tag=tag, queue=queue, epoch=session.epoch) for tag, queue, one in taken])
        return True

    # Wakes.

    async def _hear(self, session: _Session) -> None:
        """Be told of queues, for ever; without it they are looked at more often."""
        failures = 0
        while True:
            try:
                heard = notifications(
                    self._address.url, WAKE_CHANNEL, name=self._address.name, within_s=self._address.wait_s
                )
                async with aclosing(heard):
                    async for payload in heard:
                        failures = 0
                        session.is_hearing = True
                        await self._heard(session, payload)
            except OutboxError as error:
                failures += 1
                if failures == 1:
                    _log.warning("cannot be woken", reason=str(error))
            session.is_hearing = False
            await asyncio.sleep(backoff_s(max(1, failures), base_s=0.5, cap_s=30.0, jitter=Jitter.EQUAL, rng=self._rng))

    async def _heard(self, session: _Session, payload: str) -> None:
        if self._lanes.stir(read(payload)):
            session.verify_at = session.look_at = 0.0
        self._news.set()

    # Time.

    async def _wait(self, seconds: float) -> None:
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()

    def _limit(self, connection: Connection) -> contextlib.AbstractAsyncContextManager[None]:
        return deadline(connection, self._address.wait_s)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _delivery(one: Claimed, *, tag: int, queue: str, epoch: int) -> Delivery:
    return Delivery(
        queue=queue,
        receipt=Receipt(epoch=epoch, tag=tag),
        message=one.message,
        routing_key=one.routing_key,
        is_redelivered=one.is_redelivered,
    )
