"""What an app declares: a consumer, and the handlers that it runs."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, ParamSpec, TypeAlias, TypeVar

from consumer.decide.limit import Limit, check_limits
from consumer.decide.policy import Policy
from consumer.decide.rules import Rule, check_rules
from consumer.decide.versions import Upcast
from consumer.ports import Alert
from consumer.registry import Authorise, Isolation, LedgerMode, Registry, read_handler, read_upcast
from outbox.errors import ConfigError
from outbox.event import Event, EventModel
from outbox.naming import check_group

_P = ParamSpec("_P")
_R = TypeVar("_R")

DEADLINE_S: Final = 60.0
LedgerName: TypeAlias = Literal["transactional", "leased", "none"]
IsolationName: TypeAlias = Literal["none", "process"]

AlertHook: TypeAlias = Callable[[Alert], Awaitable[None] | None]
"""An app's own function that is told of alerts, async or not."""
_H = TypeVar("_H", bound=AlertHook)
_U = TypeVar("_U", bound=Upcast)
_A = TypeVar("_A", bound=Authorise)


class Consumer:
    """A group's handlers, and the rules they run by. ``outbox-consumer run app:consumer`` runs it.

    consumer = Consumer("billing")

    @consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> Outcome | None: ...
    """

    def __init__(
        self,
        group: str,
        *,
        database: str | None = None,
        policy: Policy | None = None,
        rules: Sequence[Rule] = (),
        limits: Sequence[Limit] = (),
        deadline_s: float = DEADLINE_S,
        skips_dead: bool = False,
    ) -> None:
        """Declare the consumer of *group*; nothing connects yet.

        Args:
            group: which reader of the log this is; every process with the same name shares the work.
            database: where ledger and handlers' writes are; the process's setting, if not given here.
            policy: how long a failing event is tried again, where a handler does not say.
            rules: what follows from errors that the app knows better, asked after a handler's own; the first that
                matches decides, and the built-in classes are asked last.
            limits: how much of all its types runs at once, or starts in a time, as in ``Cap(4, per="tenant")``.
            deadline_s: how long one attempt may take, where a handler does not say.
            skips_dead: whether the events behind a dead-lettered one with the same ordering key are handled all the
                same. By default they wait until it is replayed or discarded.

        Raises:
            ConfigError: *group* cannot name one.
        """
        self.group = check_group(group)
        self.database = database
        self.skips_dead = skips_dead
        self.registry = Registry()
        self.limits: list[tuple[str | None, Limit]] = [
            (None, limit) for limit in check_limits(limits, of=f"consumer {group}")
        ]
        self.alert_hooks: list[AlertHook] = []
        self._policy = policy if policy is not None else Policy()
        self._rules = check_rules(rules, of=f"consumer {group}")
        self._deadline_s = deadline_s

    def on_alert(self, hook: _H) -> _H:
        """Call *hook* with every alert, beside the log: a decorator for a function that takes an ``Alert``.

        It runs apart from the engine, for 30 s at most, and what it raises is logged. One that is not async may block.
        """
        self.alert_hooks.append(hook)
        return hook

    def on(  # noqa: PLR0913 - each has a default
        self,
        event: type[EventModel] | str,
        *,
        name: str | None = None,
        policy: Policy | None = None,
        rules: Sequence[Rule] = (),
        limits: Sequence[Limit] = (),
        deadline_s: float | None = None,
        ledger: LedgerName = "transactional",
        isolation: IsolationName = "none",
        already_done: Callable[..., object] | None = None,
    ) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
        """Handle events of the type *event*, a model or a type's name. The function itself stays as it is.

        A handler's parameters are found by their annotations: the payload (the model, ``dict`` or ``Event``), and, if
        wanted, ``Context`` and a session (``AsyncSession`` in an async function, ``Session`` in a sync one) that
        belongs to the attempt's transaction. It returns an ``Outcome``, or ``None`` for done.

        Args:
            event: what to handle.
            name: what the ledger knows the handler by; renaming it makes it another handler, which has handled
                nothing yet. The function's qualified name by default.
            policy: how long a failing event is tried again.
            rules: what follows from errors of this handler, asked before the consumer's own.
            limits: how much of this type runs at once, or starts in a time, as in ``Cap(2, scope="fleet")``. An event
                counts once, from the start of its first handler to the end of its last.
            deadline_s: how long one attempt may take.
            ledger: how an attempt and the ledger go together. ``transactional``, the default: one transaction holds the
                ledger's row and what the handler writes. ``leased``, for effects elsewhere: the event is claimed, the
                handler runs with no transaction open and without a session, and its completion counts only while this
                process's lease does; ``ctx.fencing_token`` is the claim's. ``none``, for handlers that may well run
                twice: the ledger is not asked.
            isolation: ``process`` runs a leased handler in a process of a pool, alone there and killed at its deadline:
                for handlers that keep Python's lock for long, or that may crash.
            already_done: of a leased handler, ``async def (event, ctx) -> bool`` with parameters like its own: asked
                before every attempt but an event's first, as that one's effect may be there although nobody heard of
                it. True completes the event without running the handler.

        Raises:
            ConfigError: the function's signature is not one that can be called, its name is taken, or the modes do
                not fit together.
        """
        if not (isinstance(event, str) or (isinstance(event, type) and issubclass(event, EventModel))):
            raise ConfigError(f"on: want an EventModel or a type's name, got {event!r}")
        if ledger not in tuple(LedgerMode):
            raise ConfigError(f"on: want ledger to be {', '.join(LedgerMode)}, got {ledger!r}")
        if isolation not in tuple(Isolation):
            raise ConfigError(f"on: want isolation to be {', '.join(Isolation)}, got {isolation!r}")

        own_rules = check_rules(rules, of="on")
        own_limits = check_limits(limits, of="on")

        def register(function: Callable[_P, _R]) -> Callable[_P, _R]:
            handler = read_handler(
                function,
                event,
                name=name,
                policy=policy if policy is not None else self._policy,
                deadline_s=deadline_s if deadline_s is not None else self._deadline_s,
                rules=(*own_rules, *self._rules),
                ledger=LedgerMode(ledger),
                isolation=Isolation(isolation),
                already_done=already_done,
            )
            self.registry.add(handler)
            self.limits += [(handler.event_type, limit) for limit in own_limits]
            return function

        return register

    def ignore(self, *events: type[EventModel] | str) -> None:
        """Let events of these types pass: this group has nothing to do for them.

        A group is sent every event of the app. One of a type without a handler is a dead letter, as somebody may have
        forgotten it; here it is settled, leaves no row, and moves its ordering key on.

        Raises:
            ConfigError: one names no type, or is ignored already.
        """
        for event in events:
            # By its name: a model would read the versions it knows, and no newer ones.
            name = event.event_type if isinstance(event, type) and issubclass(event, EventModel) else event
            self.on(name, name="ignored", ledger="none")(_ignored)

    def upcast(self, event: type[EventModel] | str, *, from_version: int) -> Callable[[_U], _U]:
        """Turn payloads of *event* of the version *from_version* into those of the next. The function stays as it is.

            @consumer.upcast(OrderPlaced, from_version=1)
            def with_currency(payload: dict[str, Any]) -> dict[str, Any]:
                return {**payload, "currency": "EUR"}

        It is given a copy of the JSON object and returns one; a payload that is several versions old passes through
        several, up to the version of the handler's model. Write it as a pure function: no I/O, and no clock. If it
        raises, the event is a dead letter ``invalid``. What a handler takes as ``Event`` is given as it came.

        Raises:
            ConfigError: it cannot be one, or there is one from that version already. When the consumer starts, also a
                version without one in between, and one that leads beyond what handlers take.
        """

        def register(function: _U) -> _U:
            event_type = read_upcast(function, event, from_version=from_version)
            self.registry.checks.upcasters.add(event_type, function, from_version=from_version)
            return function

        return register

    def authorise(self, function: _A) -> _A:
        """Ask *function*, async or not, before each attempt whether the event's tenant and actor may still do this.

            @consumer.authorise
            async def is_allowed(event: Event) -> bool | str:
                return await members.may_order(event.tenant, event.actor) or "its actor has left"

        True lets it be handled. False, or a sentence that says why not, makes it a dead letter ``security``, at the
        first attempt, a retry or a replay alike. What it raises is a failure of the attempt, and is retried as one. It
        counts against the handler's deadline. One that is not async must not block. The sentence must not repeat a
        payload.

        Raises:
            ConfigError: there is one already.
        """
        if self.registry.checks.authorise is not None:
            raise ConfigError("authorise: want one function for all events, got a second")
        self.registry.checks.authorise = function
        return function


async def _ignored(_event: Event) -> None:
    """Do nothing: nobody here wants it."""
