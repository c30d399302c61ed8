"""An attempt's transaction that stays open is told of: once, and again for the next."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from structlog.testing import capture_logs

from consumer.engine.transactions import Transactions
from tests.support.engine import an_event


@dataclass
class FakeSlot:
    """What is looked at of a slot."""

    number: int
    attempt_since: float | None = None
    attempt_job: Any = None


def test_a_transaction_past_the_limit_is_told_of_once_and_the_next_one_again() -> None:
    job = SimpleNamespace(handler=SimpleNamespace(name="bill"), event=an_event())
    idle, slow = FakeSlot(number=0), FakeSlot(number=1, attempt_since=100.0, attempt_job=job)
    transactions = Transactions(cast("Any", [idle, slow]), warn_s=30)
    with capture_logs() as logs:
        for now in (110.0, 130.0, 131.0, 140.0):
            transactions.look(now)
        slow.attempt_since = 150.0
        for now in (160.0, 181.0):
            transactions.look(now)
    assert [(line["handler"], line["tenant"], line["open_s"]) for line in logs] == [
        ("bill", "acme", 31.0),
        ("bill", "acme", 31.0),
    ]
    assert transactions.long == 2
