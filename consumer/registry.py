"""Which handlers there are, and what each asks for, read from its annotations when it is decorated."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from types import FunctionType
from typing import Final, TypeAlias, get_origin, get_type_hints

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer.context import Context
from consumer.decide.policy import Policy
from consumer.decide.rules import Rule
from consumer.decide.versions import NEWEST, Upcast, Upcasters, Versions
from outbox.errors import ConfigError, InvalidEvent
from outbox.event import Event, EventModel
from outbox.naming import check_type

_NAME_CHARS_MAX: Final = 200


class LedgerMode(StrEnum):
    """What the ledger has to do with an attempt. The value is what apps write."""

    TRANSACTIONAL = "transactional"  # its row and the handler's writes are one transaction
    LEASED = "leased"  # claimed before, completed after, and no transaction open in between
    NONE = "none"  # not asked: the handler may run again


class Isolation(StrEnum):
    """What a handler shares with others while it runs. The value is what apps write."""

    NONE = "none"  # the process
    PROCESS = "process"  # nothing: it runs in a process that runs nothing else meanwhile


class Role(Enum):
    """What one parameter of a handler is given."""

    MODEL = "model"  # the payload, as the event's model
    EVENT = "event"  # the event itself, payload as bytes
    MAPPING = "mapping"  # the payload, a JSON object
    CONTEXT = "context"
    SESSION = "session"


_ROLES: Final = {EventModel: Role.MODEL, Event: Role.EVENT, Context: Role.CONTEXT}
_PAYLOADS: Final = frozenset({Role.MODEL, Role.EVENT, Role.MAPPING})


Authorise: TypeAlias = Callable[[Event], "Awaitable[object] | object"]
"""An app's own function that says whether an event may be handled: True, or False, or why not."""


@dataclass(slots=True, eq=False)
class Checks:
    """What stands before every handler of one consumer."""

    upcasters: Upcasters = field(default_factory=Upcasters)
    authorise: Authorise | None = None


_ANY_VERSION: Final = Versions(oldest=1, newest=NEWEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """One function that handles events of one type. *name* is part of its identity in the ledger.

    *rules* are its own and then its consumer's: the first that matches an error decides.
    *already_done* says, before a leased handler runs once more, whether that is needless; *asks_for* is, of such a
    hook, the name of its handler.
    """

    name: str
    event_type: str
    function: Callable[..., object]
    is_async: bool
    parameters: tuple[tuple[str, Role], ...]
    model: type[EventModel] | None
    policy: Policy
    deadline_s: float
    rules: tuple[Rule, ...] = ()
    ledger: LedgerMode = LedgerMode.TRANSACTIONAL
    already_done: "Handler | None" = None
    asks_for: str | None = None
    isolation: Isolation = Isolation.NONE
    checks: Checks = field(default_factory=Checks, compare=False, repr=False)
    roles: frozenset[Role] = field(init=False, compare=False, repr=False)
    wants_session: bool = field(init=False, compare=False, repr=False)
    """Whether an attempt has to make a session."""
    takes_event: bool = field(init=False, compare=False, repr=False)
    """Whether it is given the event as it came."""

    def __post_init__(self) -> None:
        # Once per handler, not per event.
        roles = frozenset(role for _, role in self.parameters)
        object.__setattr__(self, "roles", roles)
        object.__setattr__(self, "wants_session", Role.SESSION in roles)
        object.__setattr__(self, "takes_event", Role.EVENT in roles)

    @property
    def versions(self) -> Versions:
        """The versions of its type's payloads that it reads."""
        newest = None if self.model is None else self.model.event_version
        if self.takes_event:
            return _ANY_VERSION if newest is None else Versions(oldest=1, newest=newest)
        return self.checks.upcasters.read_by(self.event_type, newest=newest)


class Registry:
    """The handlers of one consumer, by event type, in the order they were decorated, and what stands before them."""

    def __init__(self) -> None:
        self.checks = Checks()
        self._by_type: dict[str, tuple[Handler, ...]] = {}

    @property
    def types(self) -> tuple[str, ...]:
        """Every type that has a handler, sorted."""
        return tuple(sorted(self._by_type))

    def handlers_of(self, event_type: str) -> tuple[Handler, ...]:
        """Those of *event_type*; none is an answer too."""
        return self._by_type.get(event_type, ())

    def add(self, handler: Handler) -> None:
        """Take *handler* in. Raises ConfigError if its name is taken for this type."""
        others = self.handlers_of(handler.event_type)
        if any(other.name == handler.name for other in others):
            raise ConfigError(
                f"handler {handler.name} of {handler.event_type}: want a name used once per type, got a second;"
                " give one of them name=..."
            )
        self._by_type[handler.event_type] = (*others, replace(handler, checks=self.checks))

    def changed(self, change: Callable[[Handler], Handler]) -> "Registry":
        """A registry of the same handlers as *change* makes them."""
        other = Registry()
        other.checks = self.checks
        other._by_type = {name: tuple(map(change, handlers)) for name, handlers in self._by_type.items()}
        return other

    def knows(self) -> dict[str, dict[str, tuple[int, int]]]:
        """Every type and handler, with the oldest and the newest version that it reads; "" is any of the handlers."""
        known: dict[str, dict[str, tuple[int, int]]] = {}
        for event_type, handlers in self._by_type.items():
            by_name = {one.name: (one.versions.oldest, one.versions.newest) for one in handlers}
            oldest, newest = zip(*by_name.values(), strict=True)
            known[event_type] = {"": (min(oldest), max(newest)), **by_name}
        return known

    def check(self) -> None:
        """Return if upcasters and handlers fit. Raises ConfigError: one sentence says what does not."""
        for event_type in self.checks.upcasters.types:
            handlers = self.handlers_of(event_type)
            if not handlers:
                raise ConfigError(f"upcasters of {event_type}: want a type that has a handler here, got one without")
            models = [one.model.event_version for one in handlers if one.model is not None]
            self.checks.upcasters.check(event_type, newest=max(models, default=None))


def read_handler(  # noqa: PLR0913 - what ``on`` is given
    function: Callable[..., object],
    event: type[EventModel] | str,
    *,
    name: str | None,
    policy: Policy,
    deadline_s: float,
    rules: Sequence[Rule] = (),
    ledger: LedgerMode = LedgerMode.TRANSACTIONAL,
    isolation: Isolation = Isolation.NONE,
    already_done: Callable[..., object] | None = None,
) -> Handler:
    """Return what *function* is as a handler of *event*.

    Raises:
        ConfigError: it cannot be one; one sentence says which parameter and why.
    """
    label = name or _name_of(function)
    event_type = _type_of(event, label)
    is_async = _is_async(function, label)
    hints = _hints(function, label)
    parameters = tuple(
        (parameter.name, _role(parameter, hints.get(parameter.name), is_async=is_async, label=label))
        for parameter in inspect.signature(function).parameters.values()
    )
    _check_roles(parameters, label)
    model = _model(hints, parameters)
    if model is not None and model.event_type != event_type:
        raise ConfigError(
            f"handler {label}: want the model of {event_type}, got {model.__name__} of {model.event_type}"
        )
    if not deadline_s > 0:
        raise ConfigError(f"handler {label}: want a deadline_s above 0, got {deadline_s}")
    handler = Handler(
        name=label,
        event_type=event_type,
        function=function,
        is_async=is_async,
        parameters=parameters,
        model=model if model is not None else (event if isinstance(event, type) else None),
        policy=policy,
        deadline_s=deadline_s,
        rules=tuple(rules),
        ledger=ledger,
        isolation=isolation,
    )
    if isolation is Isolation.PROCESS and ledger is not LedgerMode.LEASED:
        raise ConfigError(
            f"handler {label}: want isolation='process' with ledger='leased' only, got it with {ledger.value!r}"
        )
    if ledger is LedgerMode.LEASED and handler.wants_session:
        raise ConfigError(
            f"handler {label}: want no session with ledger='leased', which runs with no transaction open, got one"
        )
    if already_done is None:
        return handler
    return replace(handler, already_done=_read_hook(already_done, event, handler))


def _read_hook(function: Callable[..., object], event: type[EventModel] | str, handler: Handler) -> Handler:
    if handler.ledger is not LedgerMode.LEASED:
        raise ConfigError(
            f"handler {handler.name}: want already_done with ledger='leased' only, got it with {handler.ledger.value!r}"
        )
    hook = read_handler(
        function,
        event,
        name=f"{handler.name}.already_done",
        policy=handler.policy,
        deadline_s=handler.deadline_s,
    )
    if hook.wants_session:
        raise ConfigError(f"{hook.name}: want the event and, if wanted, Context, got a session too")
    return replace(hook, asks_for=handler.name)


def read_upcast(function: Upcast, event: type[EventModel] | str, *, from_version: int) -> str:
    """Return the type that *function* is an upcaster of. Raises ConfigError: it cannot be one."""
    label = _name_of(function)
    event_type = _type_of(event, label, kind="upcaster")
    if type(from_version) is not int or from_version < 1:
        raise ConfigError(f"upcaster {label}: want a from_version of 1 or more, got {from_version!r}")
    if _is_async(function, label, kind="upcaster"):
        raise ConfigError(f"upcaster {label}: want a function that is not async, got one that is")
    if len(inspect.signature(function).parameters) != 1:
        raise ConfigError(
            f"upcaster {label}: want one parameter, the payload, got {len(inspect.signature(function).parameters)}"
        )
    return event_type


def _model(hints: dict[str, type], parameters: tuple[tuple[str, Role], ...]) -> type[EventModel] | None:
    found = (hints[name] for name, role in parameters if role is Role.MODEL)
    return next((kind for kind in found if issubclass(kind, EventModel)), None)


def _name_of(function: Callable[..., object]) -> str:
    name = getattr(function, "__qualname__", "").rpartition("<locals>.")[2]
    if not name or "<lambda>" in name:
        raise ConfigError("handler: want a function with a name, got one without; give it name=...")
    return name[:_NAME_CHARS_MAX]


def _type_of(event: type[EventModel] | str, label: str, *, kind: str = "handler") -> str:
    if isinstance(event, str):
        event_type = event
    elif isinstance(event, type) and issubclass(event, EventModel):
        event_type = event.event_type
    else:
        raise ConfigError(f"{kind} {label}: want an EventModel or a type's name, got {event!r}")
    try:
        return check_type(event_type)
    except InvalidEvent as error:
        raise ConfigError(f"{kind} {label}: {error}") from None


def _is_async(function: Callable[..., object], label: str, *, kind: str = "handler") -> bool:
    if not isinstance(function, FunctionType):
        raise ConfigError(f"{kind} {label}: want a function, got {type(function).__name__}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{kind} {label}: want a function that returns, got one that yields")
    return inspect.iscoroutinefunction(function)


def _hints(function: Callable[..., object], label: str) -> dict[str, type]:
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError) as error:
        raise ConfigError(
            f"handler {label}: want annotations that can be read when it is decorated, got {error};"
            " import the types at run time"
        ) from None
    hints.pop("return", None)
    return hints


def _role(parameter: inspect.Parameter, hint: object, *, is_async: bool, label: str) -> Role:
    where = f"handler {label}, parameter {parameter.name}"
    if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
        raise ConfigError(f"{where}: want one that can be given by name, got a {parameter.kind.description} one")
    if hint is None:
        raise ConfigError(f"{where}: want an annotation, got none")
    kind = get_origin(hint) or hint
    if kind in {dict, Mapping}:
        return Role.MAPPING
    if isinstance(kind, type):
        if issubclass(kind, AsyncSession | Session):
            _check_session(kind, where, is_async=is_async)
            return Role.SESSION
        for base, role in _ROLES.items():
            if issubclass(kind, base):
                return role
    raise ConfigError(f"{where}: want an EventModel, Event, dict, Context or session, got {hint!r}")


def _check_session(kind: type, where: str, *, is_async: bool) -> None:
    if is_async != issubclass(kind, AsyncSession):
        wanted = "AsyncSession in an async function" if is_async else "Session in a sync function"
        raise ConfigError(f"{where}: want {wanted}, got {kind.__name__}")


def _check_roles(parameters: tuple[tuple[str, Role], ...], label: str) -> None:
    roles = [role for _, role in parameters]
    payloads = sum(role in _PAYLOADS for role in roles)
    if payloads != 1:
        raise ConfigError(f"handler {label}: want one parameter for the event, got {payloads}")
    for role in (Role.CONTEXT, Role.SESSION):
        if roles.count(role) > 1:
            raise ConfigError(f"handler {label}: want one {role.value} at most, got {roles.count(role)}")
