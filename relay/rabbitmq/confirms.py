"""What was published on one channel and what the broker has said of it. No I/O, no clock.

RabbitMQ answers every publish of a confirm channel once: an ack or a nack, singly or for all up to a
number. An unroutable one is returned first and acked after, so the return decides. Returns name no
number, but they come in publishing order: each is looked for behind the one before it, so the same
event sent to two groups is never taken for the other.
"""

from collections.abc import Sequence

from relay.ports import Category, Confirmed, Failed, Nacked, Outgoing, Settlement


class Confirms:
    """Delivery tags count from 1, by one for each publish, in the order they are written."""

    def __init__(self) -> None:
        self._unsettled: dict[int, Outgoing] = {}
        self._returned: dict[int, str] = {}
        self._last = 0  # the newest delivery tag
        self._settled_to = 0  # every tag up to here has been settled
        self._searched_to = 0  # no return can be for a tag up to here any more

    @property
    def is_idle(self) -> bool:
        """Whether everything published is settled."""
        return not self._unsettled

    def unsettled(self) -> Sequence[Outgoing]:
        """What the broker has not answered, in publishing order."""
        return tuple(self._unsettled.values())

    def published(self, outgoing: Outgoing) -> None:
        """*outgoing* is the next one on the channel."""
        self._last += 1
        self._unsettled[self._last] = outgoing

    def returned(self, *, routing_key: str, message_id: str, reason: str) -> bool:
        """Mark the publish that came back; False if there is none, so what else was acked cannot be believed."""
        for delivery_tag in range(self._searched_to + 1, self._last + 1):
            outgoing = self._unsettled.get(delivery_tag)
            if outgoing is None or str(outgoing.event.id) != message_id or outgoing.lane.routing_key != routing_key:
                continue
            self._searched_to = delivery_tag
            self._returned[delivery_tag] = reason
            return True
        return False

    def settled(self, delivery_tag: int, *, is_multiple: bool, is_ack: bool) -> Sequence[Settlement]:
        """What the broker's ack or nack of *delivery_tag* says, in publishing order."""
        if not is_multiple:  # most often
            outgoing = self._unsettled.pop(delivery_tag, None)
            return [] if outgoing is None else [self._settlement(delivery_tag, outgoing.tag, is_ack=is_ack)]
        first = self._settled_to + 1
        if not delivery_tag:  # the protocol's way to say "all of them"
            delivery_tag = self._last
        self._settled_to = max(self._settled_to, delivery_tag)
        settlements: list[Settlement] = []
        for each in range(first, delivery_tag + 1):
            outgoing = self._unsettled.pop(each, None)
            if outgoing is not None:
                settlements.append(self._settlement(each, outgoing.tag, is_ack=is_ack))
        return settlements

    def _settlement(self, delivery_tag: int, tag: int, *, is_ack: bool) -> Settlement:
        reason = self._returned.pop(delivery_tag, None) if self._returned else None
        if reason is not None:
            return Failed(tag=tag, category=Category.UNROUTABLE, reason=reason)
        return Confirmed(tag=tag) if is_ack else Nacked(tag=tag)
