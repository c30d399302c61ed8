"""Rows of the log that tests need and say nothing about, and their confirms."""

from datetime import UTC, datetime
from uuid import UUID

from outbox.event import JSON, Event, Tier
from relay.decide.pieces import Piece, Row, Sent


def row(seq: int, *, size_bytes: int = 2, tenant: str = "acme", tier: Tier = Tier.STANDARD) -> Row:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    event = Event(
        id=UUID(int=seq),
        tenant=tenant,
        tier=tier,
        type="t",
        data_version=1,
        source="test",
        content_type=JSON,
        payload=b"x" * size_bytes,
        time=now,
        ledger_time=now,
    )
    return Row(seq, event)


def rows(count: int) -> list[Row]:
    return [row(seq) for seq in range(1, count + 1)]


def settle(*sents: Sent) -> None:
    """The broker has confirmed *sents*, each of a piece."""
    for sent in sents:
        sent.is_settled = True
        sent.stream.outstanding -= 1
        assert isinstance(sent.origin, Piece)
        sent.origin.settle()
