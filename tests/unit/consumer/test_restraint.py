"""What budgets and breakers make of what follows from an attempt."""

import random
from itertools import count

from consumer import AlertKind, Breaker, Budget, Consumer, DeadCategory, Policy
from consumer.engine.alarm import Alarm
from consumer.engine.attempt import Handled, Raised
from consumer.engine.item import Item
from consumer.engine.restraint import Restraint
from consumer.engine.verdict import Buried, Fate, Pending, fate_of
from consumer.ports import Alert, Receipt
from consumer.registry import Handler
from outbox.event import Event
from outbox.naming import Lane
from outbox.wire import encode
from tests.support.engine import TYPE, an_event

NUMBERS = count(1)


def handler_of(policy: Policy) -> Handler:
    consumer = Consumer("billing", policy=policy)

    @consumer.on(TYPE)
    def bill(event: Event) -> None: ...

    return consumer.registry.handlers_of(TYPE)[0]


def an_item(tenant: str = "acme") -> Item:
    event = an_event(tenant=tenant)
    number = next(NUMBERS)
    return Item(
        ident=number,
        lane=Lane(group="billing", tier=event.tier, tenant=tenant),
        message=encode(event),
        envelope=event,
        source=Receipt(epoch=1, tag=number),
        arrived_at=0.0,
    )


def judged(
    restraint: Restraint,
    handler: Handler,
    *,
    item: Item | None = None,
    error: BaseException | None = None,
    attempt: int = 1,
) -> Fate:
    result = Raised(attempt=attempt, error=error if error is not None else ConnectionError())
    fate = fate_of(handler, result, elapsed_s=0.0, rng=random.Random(1))
    return restraint.judge(handler, item if item is not None else an_item(), result, fate)


def opened(policy: Policy) -> tuple[Restraint, Handler]:
    """A restraint whose breaker has just opened for the tenant acme."""
    restraint, handler = Restraint(Alarm("billing")), handler_of(policy)
    assert policy.breaker is not None
    for _ in range(policy.breaker.calls_min):
        judged(restraint, handler)
    assert len(restraint) == 1
    return restraint, handler


def test_what_fails_while_a_breaker_is_not_closed_is_charged_neither_an_attempt_nor_its_time_nor_the_budget() -> None:
    policy = Policy(max_retries=3, breaker=Breaker(calls_min=5, open_s=60), budget=Budget(percent=0, per_minute_min=4))
    restraint, handler = opened(policy)

    for _ in range(50):
        fate = judged(restraint, handler, attempt=3)
        assert isinstance(fate, Pending)
        assert (fate.attempts, fate.is_failing) == (2, False)
        assert 59 < fate.wait_s <= 60
    last = judged(restraint, handler, attempt=4)
    assert isinstance(last, Pending)  # it would have been its last attempt
    assert last.attempts == 3


def test_an_event_that_is_wrong_is_buried_though_a_breaker_is_open() -> None:
    restraint, handler = opened(Policy(breaker=Breaker(calls_min=5, open_s=60)))

    fate = judged(restraint, handler, error=PermissionError())
    wrong = judged(restraint, handler, error=_permanent())

    assert isinstance(fate, Pending)
    assert isinstance(wrong, Buried)
    assert wrong.category is DeadCategory.PERMANENT


def test_a_breaker_of_one_tenant_excuses_no_other() -> None:
    restraint, handler = opened(Policy(breaker=Breaker(calls_min=5, open_s=60)))

    other = judged(restraint, handler, item=an_item("zeta"))

    assert isinstance(other, Pending)
    assert other.attempts == 1
    assert not restraint.admits(an_item("acme"))
    assert restraint.admits(an_item("zeta"))


def test_a_wait_that_was_asked_for_is_kept_while_a_breaker_is_open() -> None:
    restraint, handler = opened(Policy(breaker=Breaker(calls_min=5, open_s=60)))
    error = ConnectionError()
    error.retry_after_s = 500.0  # type: ignore[attr-defined]

    fate = judged(restraint, handler, error=error)

    assert isinstance(fate, Pending)
    assert fate.wait_s >= 500


def test_events_that_are_wrong_open_no_breaker_and_spend_no_budget() -> None:
    restraint, handler = Restraint(Alarm("billing")), handler_of(Policy(breaker=Breaker(calls_min=5)))

    fates = [judged(restraint, handler, error=_permanent()) for _ in range(100)]

    assert len(restraint) == 0
    assert all(isinstance(fate, Buried) and fate.category is DeadCategory.PERMANENT for fate in fates)


def test_successes_keep_a_breaker_closed() -> None:
    restraint, handler = Restraint(Alarm("billing")), handler_of(Policy(breaker=Breaker(calls_min=5)))
    done = Handled(attempt=1)
    for _ in range(20):
        restraint.judge(handler, an_item(), done, fate_of(handler, done, elapsed_s=0.0, rng=random.Random(1)))
        judged(restraint, handler)

    assert len(restraint) == 0


def test_a_breaker_tells_when_it_opens_and_for_whom() -> None:
    class Nowhere:
        async def send(self, alert: Alert) -> None: ...

    alarm = Alarm("billing", [Nowhere()])
    restraint, handler = Restraint(alarm), handler_of(Policy(breaker=Breaker(calls_min=5)))
    for _ in range(5):
        judged(restraint, handler)

    queued = [waiting.get_nowait() for _, waiting in alarm._waiting]
    assert [(alert.kind, alert.tenant, alert.handler) for alert in queued] == [
        (AlertKind.BREAKER_OPENED, "acme", "bill")
    ]


def _permanent() -> Exception:
    error = ValueError()
    error.sqlstate = "23505"  # type: ignore[attr-defined]
    return error
