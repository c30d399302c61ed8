"""What a handler may look like, and what is refused when it is decorated."""

import functools
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer import Consumer, Context, Outcome, Policy
from consumer.registry import Role
from outbox.errors import ConfigError
from outbox.event import Event, EventModel


class OrderPlaced(EventModel, type="orders.order.placed", version=2):
    order_id: int


class OrderPaid(EventModel, type="orders.order.paid"):
    order_id: int


class Nameless(EventModel):
    order_id: int


@pytest.fixture
def consumer() -> Consumer:
    return Consumer("billing")


def test_parameters_are_found_by_annotation_in_any_order(consumer: Consumer) -> None:
    @consumer.on(OrderPlaced)
    async def bill(ctx: Context, session: AsyncSession, *, event: OrderPlaced) -> Outcome | None: ...

    @consumer.on("orders.order.placed")
    def thank(session: Session, payload: dict[str, Any]) -> None: ...

    @consumer.on("orders.order.placed")
    def count(event: Event) -> None: ...

    @consumer.on("orders.order.placed")
    def look(payload: Mapping[str, object]) -> None: ...

    found = consumer.registry.handlers_of("orders.order.placed")
    assert [(one.name, one.is_async, one.model) for one in found] == [
        ("bill", True, OrderPlaced),
        ("thank", False, None),
        ("count", False, None),
        ("look", False, None),
    ]
    assert found[0].parameters == (("ctx", Role.CONTEXT), ("session", Role.SESSION), ("event", Role.MODEL))
    assert found[1].parameters == (("session", Role.SESSION), ("payload", Role.MAPPING))
    assert found[2].parameters == (("event", Role.EVENT),)
    assert found[3].parameters == (("payload", Role.MAPPING),)


def test_a_decorated_function_stays_as_it_is(consumer: Consumer) -> None:
    def bill(event: OrderPlaced) -> None: ...

    assert consumer.on(OrderPlaced)(bill) is bill


def test_a_handler_that_is_given_a_type_by_name_may_take_the_model(consumer: Consumer) -> None:
    @consumer.on("orders.order.placed")
    async def bill(event: OrderPlaced) -> None: ...

    assert consumer.registry.handlers_of("orders.order.placed")[0].model is OrderPlaced


def test_a_handlers_own_policy_and_deadline_win_over_the_consumers() -> None:
    consumer = Consumer("billing", policy=Policy(max_retries=1), deadline_s=5)

    @consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced) -> None: ...

    @consumer.on(OrderPlaced, policy=Policy(max_retries=9), deadline_s=1)
    async def thank(event: OrderPlaced) -> None: ...

    found = consumer.registry.handlers_of("orders.order.placed")
    assert [(one.policy.max_retries, one.deadline_s) for one in found] == [(1, 5), (9, 1)]


def no_parameters() -> None: ...
def two_payloads(event: OrderPlaced, raw: Event) -> None: ...
def context_alone(ctx: Context) -> None: ...
def two_contexts(event: OrderPlaced, a: Context, b: Context) -> None: ...
def unannotated(event) -> None: ...  # type: ignore[no-untyped-def]  # it is what is refused
def a_number(event: OrderPlaced, retries: int = 3) -> None: ...
def by_position(event: OrderPlaced, /) -> None: ...
def any_number(*events: OrderPlaced) -> None: ...
def another_model(event: OrderPaid) -> None: ...
def sync_with_async_session(event: OrderPlaced, session: AsyncSession) -> None: ...
async def async_with_sync_session(event: OrderPlaced, session: Session) -> None: ...
def unknown_annotation(event: "NoSuchThing") -> None: ...  # type: ignore[name-defined] # noqa: F821 - as above


async def yielding(event: OrderPlaced) -> AsyncIterator[int]:
    yield 1


class Callable_:
    def __call__(self, event: OrderPlaced) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (no_parameters, "one parameter for the event, got 0"),
        (two_payloads, "one parameter for the event, got 2"),
        (context_alone, "one parameter for the event, got 0"),
        (two_contexts, "one context at most, got 2"),
        (unannotated, "parameter event: want an annotation"),
        (a_number, "parameter retries: want an EventModel, Event, dict, Context or session"),
        (by_position, "can be given by name"),
        (any_number, "can be given by name"),
        (another_model, "want the model of orders.order.placed, got OrderPaid"),
        (sync_with_async_session, "want Session in a sync function, got AsyncSession"),
        (async_with_sync_session, "want AsyncSession in an async function, got Session"),
        (unknown_annotation, "want annotations that can be read"),
        (yielding, "want a function that returns, got one that yields"),
        (lambda _: None, "want a function with a name"),
        (functools.partial(another_model), "want a function with a name"),
        (Callable_(), "want a function"),
    ],
)
def test_a_signature_that_cannot_be_called_is_refused_in_one_sentence(
    consumer: Consumer, function: Callable[..., object], says: str
) -> None:
    with pytest.raises(ConfigError, match="handler") as refused:
        consumer.on(OrderPlaced)(function)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert consumer.registry.types == ()


def test_a_name_is_taken_once_per_type(consumer: Consumer) -> None:
    @consumer.on(OrderPlaced, name="bill")
    async def one(event: OrderPlaced) -> None: ...

    @consumer.on(OrderPaid, name="bill")
    async def two(event: OrderPaid) -> None: ...

    with pytest.raises(ConfigError, match="want a name used once per type"):

        @consumer.on(OrderPlaced)
        async def bill(event: OrderPlaced) -> None: ...


@pytest.mark.parametrize("event", [Nameless, "", "no spaces here", int, 7, "x" * 201])
def test_what_names_no_event_type_is_refused(consumer: Consumer, event: Any) -> None:
    with pytest.raises(ConfigError):

        @consumer.on(event)
        async def bill(event: Event) -> None: ...


def test_a_type_is_ignored_once_and_by_its_name(consumer: Consumer) -> None:
    consumer.ignore(OrderPlaced, "a.b")
    assert consumer.registry.types == ("a.b", OrderPlaced.event_type)
    with pytest.raises(ConfigError, match="handler ignored of"):
        consumer.ignore("a.b")
    with pytest.raises(ConfigError, match="a type's name"):
        consumer.ignore(int)  # type: ignore[arg-type]


@pytest.mark.parametrize("group", ["", "Billing", "a.b", "a b", "x" * 64])
def test_what_names_no_group_is_refused(group: str) -> None:
    with pytest.raises(ConfigError, match="group"):
        Consumer(group)


def test_a_deadline_of_nothing_is_refused(consumer: Consumer) -> None:
    with pytest.raises(ConfigError, match="deadline_s"):

        @consumer.on(OrderPlaced, deadline_s=0)
        async def bill(event: OrderPlaced) -> None: ...


def test_the_modes_of_the_ledger_refuse_what_does_not_fit_them() -> None:
    consumer = Consumer("billing")

    async def with_session(event: Event, session: AsyncSession) -> None: ...

    async def plain(event: Event) -> None: ...

    async def hook(event: Event, ctx: Context) -> bool:
        return True

    with pytest.raises(ConfigError, match="want ledger to be transactional, leased, none, got 'once'"):
        consumer.on("a.b", ledger="once")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="want no session with ledger='leased'"):
        consumer.on("a.b", ledger="leased")(with_session)
    with pytest.raises(ConfigError, match="want already_done with ledger='leased' only, got it with 'none'"):
        consumer.on("a.b", ledger="none", already_done=hook)(plain)
    with pytest.raises(ConfigError, match="already_done: want the event and, if wanted, Context, got a session too"):
        consumer.on("a.b", ledger="leased", already_done=with_session)(plain)
    consumer.on("a.b", ledger="none")(with_session)
    consumer.on("a.b", ledger="leased", already_done=hook)(plain)
    handler = consumer.registry.handlers_of("a.b")[1]
    assert handler.already_done is not None
    assert handler.already_done.name.endswith("plain.already_done")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"isolation": "process"}, "want isolation='process' with ledger='leased' only, got it with 'transactional'"),
        ({"isolation": "thread", "ledger": "leased"}, "want isolation to be none, process, got 'thread'"),
    ],
)
def test_a_process_of_ones_own_is_for_leased_handlers(consumer: Consumer, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):

        @consumer.on(OrderPlaced, **options)
        def bill(event: OrderPlaced) -> None: ...
