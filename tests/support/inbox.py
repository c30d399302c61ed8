"""The engine's side of the broker port, as a test sees it: what was heard, and waiting for it."""

from collections.abc import Sequence

from consumer.ports import Delivery, LostBecause, Receipt
from tests.support.wait import until


class RecordingInbox:
    """Keeps all it hears, in order; settles nothing by itself."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.lost_epochs: list[int] = []
        self.lost_queues: list[tuple[str, LostBecause]] = []
        self.connections: list[bool] = []  # each change, True for up
        self.batches = 0

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        self.batches += 1
        self.deliveries.extend(deliveries)

    def channel_lost(self, epoch: int) -> None:
        self.lost_epochs.append(epoch)

    def queue_lost(self, queue: str, because: LostBecause) -> None:
        self.lost_queues.append((queue, because))

    def connected(self, *, is_connected: bool) -> None:
        self.connections.append(is_connected)

    @property
    def is_connected(self) -> bool:
        return bool(self.connections) and self.connections[-1]

    @property
    def ids(self) -> list[str]:
        """The message ids that came, in order, twice where one came twice."""
        return [delivery.message.message_id for delivery in self.deliveries]

    def receipts(self, *, of: str | None = None) -> list[Receipt]:
        """The receipts of all deliveries, or of those from the queue *of*."""
        return [delivery.receipt for delivery in self.deliveries if of is None or delivery.queue == of]

    async def received(self, count: int, *, deadline_s: float = 30.0) -> list[Delivery]:
        """Wait until *count* deliveries have come in all; returns them all."""
        await until(
            lambda: len(self.deliveries) >= count,
            deadline_s=deadline_s,
            what=f"{count} deliveries, {len(self.deliveries)} at the start",
        )
        return self.deliveries

    async def up(self, *, times: int = 1, deadline_s: float = 30.0) -> None:
        """Wait until the connection has come up *times* times and is up now."""
        await until(
            lambda: self.connections.count(True) >= times and self.is_connected,
            deadline_s=deadline_s,
            what=f"the connection to come up for the {times}. time",
        )
