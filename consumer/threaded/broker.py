"""The broker port on a connection in a thread: the engine's side of it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from consumer.ports import Delivery, Inbox, Receipt
from consumer.threaded.talk import Attach, ChannelLost, Command, Connected, Detach, Event, QueueLost, Settle, Stop
from consumer.threaded.thread import Mailbox, WireThread

_log: Final = structlog.get_logger(__name__)
_STOP_S: Final = 15.0


class Wire(Protocol):
    """What runs in the thread: a connection that is opened again whenever it is lost."""

    commands: Mailbox[Command]

    async def run(self) -> None:
        """Stay connected until told to stop; then write what was settled and close."""


class ThreadedBroker:
    """``consumer.ports.Broker`` on a wire that runs in a thread of its own."""

    def __init__(self, name: str, wire: Callable[[Callable[[Sequence[Event]], None]], Wire]) -> None:
        """*wire* is made at once, and is given what to call with what happens; *name* is the thread's."""
        self._name = name
        self._events: Mailbox[Event] = Mailbox(self._hear)
        self._wire = wire(self._events.post)
        self._inbox: Inbox | None = None
        self._thread: WireThread | None = None

    async def start(self, inbox: Inbox) -> None:
        """As the port says."""
        self._inbox = inbox
        self._events.open(asyncio.get_running_loop())
        self._thread = WireThread(self._name, self._wire.run)

    async def attach(self, queue: str, *, prefetch: int, is_extra: bool = False) -> None:
        """As the port says."""
        self._wire.commands.post((Attach(queue=queue, prefetch=prefetch, is_extra=is_extra),))

    async def detach(self, queue: str, *, is_extra: bool = False) -> None:
        """As the port says."""
        self._wire.commands.post((Detach(queue=queue, is_extra=is_extra),))

    def settle(self, receipts: Sequence[Receipt], *, requeue: bool = False) -> None:
        """As the port says."""
        self._wire.commands.post((Settle(receipts=receipts, requeue=requeue),))

    async def stop(self) -> None:
        """As the port says."""
        self._inbox = None
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        self._wire.commands.post((Stop(),))
        if not await thread.ended(within_s=_STOP_S):
            # The thread is left behind; the broker hands everything out again once its heartbeats stay away.
            _log.warning("broker connection did not close", within_s=_STOP_S)

    def _hear(self, events: Sequence[Event]) -> None:
        inbox = self._inbox
        if inbox is None:
            return
        batch: list[Delivery] = []
        for event in events:
            if isinstance(event, Delivery):
                batch.append(event)
                continue
            if batch:
                inbox.deliver(batch)
                batch = []
            _hear_other(inbox, event)
        if batch:
            inbox.deliver(batch)


def _hear_other(inbox: Inbox, event: ChannelLost | QueueLost | Connected) -> None:
    match event:
        case ChannelLost():
            inbox.channel_lost(event.epoch)
        case QueueLost():
            inbox.queue_lost(event.queue, event.because)
        case Connected():
            inbox.connected(is_connected=event.is_connected)
