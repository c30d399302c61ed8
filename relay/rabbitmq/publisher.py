"""RabbitMQ as the relay's publisher and topology: one connection that only publishes, opened again by the engine."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

from yarl import URL

from outbox.errors import BrokerUnavailable, ConfigError
from outbox.naming import Lane
from outbox.topology import QueueKind
from relay.ports import Announcement, LaneFault, Outgoing, Settlement
from relay.rabbitmq.caution import Caution
from relay.rabbitmq.channel import PublishingChannel
from relay.rabbitmq.client import translated
from relay.rabbitmq.frames import DEFAULT_BODY_BYTES_MAX
from relay.rabbitmq.topology import RabbitTopology

_PORTS: Final = {"amqp": 5672, "amqps": 5671}


class RabbitPublisher:
    """Implements ``relay.ports.Publisher`` and ``relay.ports.LaneTopology``.

    After the broker closed the channel over one event, ``open`` begins in caution: what was unsettled
    then is sent one by one until the offender is found; it alone is Failed, the others are published.
    """

    def __init__(
        self,
        *,
        url: str,
        queue_kind: QueueKind = "quorum",
        connect_timeout_s: float = 10.0,
        heartbeat_s: int = 10,
        write_timeout_s: float = 10.0,
        call_timeout_s: float = 10.0,
        body_bytes_max: int = DEFAULT_BODY_BYTES_MAX,
    ) -> None:
        """Args:
        url: ``amqp[s]://user:password@host:port/vhost``.
        heartbeat_s: a connection on which nothing is heard for twice as long is lost.
        write_timeout_s: how long the socket may take nothing; an alarm of the broker does not count.
        call_timeout_s: how long the broker may take for a call that concerns no lane.
        body_bytes_max: the broker's own limit; larger payloads are Failed without being sent.
        """
        self._url = _parse(url).update_query(heartbeat=str(heartbeat_s))
        self._connect_timeout_s = connect_timeout_s
        self._heartbeat_s = heartbeat_s
        self._write_timeout_s = write_timeout_s
        self._body_bytes_max = body_bytes_max
        self._caution = Caution()
        self._channel: PublishingChannel | None = None
        self._topology = RabbitTopology(
            queue_kind=queue_kind, timeout_s=call_timeout_s, is_blocked=lambda: self.is_blocked
        )

    @property
    def is_blocked(self) -> bool:
        """See ``relay.ports.Publisher``."""
        return self._channel is not None and self._channel.is_blocked

    async def open(self) -> None:
        """See ``relay.ports.Publisher``."""
        await self.close()
        channel = self._channel = PublishingChannel(
            caution=self._caution,
            body_bytes_max=self._body_bytes_max,
            write_timeout_s=self._write_timeout_s,
            heartbeat_s=self._heartbeat_s,
        )
        where = f"RabbitMQ at {self._url.host}:{self._url.port or _PORTS[self._url.scheme]}"
        try:
            with translated(where):
                async with asyncio.timeout(self._connect_timeout_s):
                    await self._topology.attach(await channel.open(self._url))
        except BaseException:
            await self.close()
            raise

    async def send(self, batch: Sequence[Outgoing]) -> None:
        """See ``relay.ports.Publisher``. While the broker is blocked, what is written waits in memory."""
        await self._opened().send(batch)

    async def settlements(self, *, timeout_s: float) -> Sequence[Settlement]:
        """See ``relay.ports.Publisher``."""
        return await self._opened().settlements(timeout_s=timeout_s)

    def unread(self) -> AbstractContextManager[None]:
        """See ``relay.ports.Publisher``. The socket keeps what arrives, the broker's alarms with it."""
        return self._opened().unread()

    async def close(self) -> None:
        """See ``relay.ports.Publisher``."""
        channel, self._channel = self._channel, None
        if channel is not None:
            self._topology.blame(channel.brokers_words or "")
            await channel.close()

    async def declare(self, lanes: Sequence[Lane], *, patience_s: float = 10.0) -> Sequence[LaneFault]:
        """See ``relay.ports.LaneTopology``."""
        return await self._topology.declare(lanes, patience_s=patience_s)

    async def announce(self, announcements: Sequence[Announcement]) -> Sequence[LaneFault]:
        """See ``relay.ports.LaneTopology``."""
        return await self._topology.announce(announcements)

    def roll_calls(self) -> frozenset[str]:
        """See ``relay.ports.LaneTopology``."""
        return self._topology.roll_calls()

    def _opened(self) -> PublishingChannel:
        if self._channel is None:
            raise BrokerUnavailable("RabbitMQ: want an open connection, got none")
        return self._channel


def _parse(url: str) -> URL:
    try:
        parsed = URL(url)
    except ValueError:
        raise ConfigError("RabbitMQ URL: want amqp[s]://user:password@host:port/vhost, got no URL") from None
    if parsed.scheme not in _PORTS or not parsed.host:
        raise ConfigError(f"RabbitMQ URL: want amqp:// or amqps:// and a host, got scheme {parsed.scheme!r}")
    return parsed
