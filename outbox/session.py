"""Emit events in the transaction that commits the business rows they are about."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, overload
from uuid import UUID

from sqlalchemy import Connection, Engine, insert
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session

from outbox import rows
from outbox.draft import Body, Envelope, Payload, body_of_model, body_of_plain, check_source, due_of
from outbox.errors import ConfigError, InvalidEvent
from outbox.event import JSON, EventModel, Tier, new_event_id
from outbox.pending import Cancellation, Emission, Handle, Origin, install_hooks, open_transaction, pending_of
from outbox.schema import TENANT_SETTING
from outbox.schema import event as event_table
from outbox.sessions import AnySession, sync_session
from outbox.tenancy import apply_at_begin, tenant_of
from outbox.trail import Trail, current_trail
from outbox.waker import Waker

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session
    from sqlalchemy.orm import scoped_session

_PAYLOAD_BYTES_MAX: Final = 256 * 1024
_KEY_RETENTION: Final = timedelta(days=14)
_ANY_ROW: Final = insert(event_table)


class Outbox:
    """Where an app's events go: into the transaction of the session they are emitted in.

    One instance serves every session and thread of an app. It holds no connection, unless it is to wake relays.
    """

    def __init__(
        self,
        source: str,
        *,
        payload_bytes_max: int = _PAYLOAD_BYTES_MAX,
        key_retention: timedelta = _KEY_RETENTION,
        tenant_setting: str | None = TENANT_SETTING,
        bind: "Engine | AsyncEngine | None" = None,
        wake: bool = False,
    ) -> None:
        """Make an outbox.

        Args:
            source: who emits, as CloudEvents has it: a URI reference, for example ``/svc/orders``.
            payload_bytes_max: a larger payload is refused.
            key_retention: how long an idempotency key is remembered.
            tenant_setting: the PostgreSQL setting that holds the tenant in each transaction of a session that
                has one, for row-level security; ``None`` makes none.
            bind: the engine of the outbox's database, for sessions that speak to several.
            wake: tell the relays that listen (``OUTBOX_RELAY_LISTEN``) of each commit, so that the first event after
                a quiet time goes out at once. It is told after the commit, by a thread with a connection of its own,
                at most ten times a second; what fails there harms no transaction.

        Raises:
            ConfigError: an argument is wrong.
        """
        if payload_bytes_max < 1:
            raise ConfigError(f"payload_bytes_max: want at least 1, got {payload_bytes_max}")
        if key_retention <= timedelta(0):
            raise ConfigError(f"key_retention: want more than 0, got {key_retention}")
        self._source = check_source(source)
        self._payload_bytes_max = payload_bytes_max
        self._key_retention = key_retention
        self._waker = Waker() if wake else None
        self._bind: Engine | None = bind if bind is None or isinstance(bind, Engine) else bind.sync_engine
        install_hooks()
        apply_at_begin(tenant_setting)

    def emit(  # noqa: PLR0913 (each option has a name here; a bag of options would hide them)
        self,
        session: AnySession,
        event: EventModel | Callable[[], EventModel] | str,
        payload: Payload | Callable[[], Payload] = None,
        *,
        version: int = 1,
        content_type: str = JSON,
        tenant: str | None = None,
        tier: Tier | None = None,
        ordering_key: str | None = None,
        idempotency_key: str | None = None,
        due_at: datetime | None = None,
        delay: timedelta | None = None,
        actor: str | None = None,
        causation_id: UUID | str | None = None,
        correlation_id: UUID | str | None = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> Handle:
        """Let *event* be committed with *session*'s transaction, or vanish with it. No I/O, for either kind of session.

        Args:
            event: a typed event; a function that returns one, run at commit after the flush, when rows have the
                keys that the database makes; or a type's name, for a plain event.
            payload: of a plain event: what JSON can hold, bytes, or a function that returns either.
            version: of a plain event's payload.
            content_type: of a plain event's payload; other than JSON it comes as bytes.
            tenant: whose event it is; else the session's (``bind_tenant``), else the scope's (``tenant_scope``).
            tier: else the typed event's own, else standard.
            ordering_key: events of a tenant, tier and key are handled one after the other, in the order in which
                their transactions committed.
            idempotency_key: of all emits of a tenant with this key and payload only the first adds an event.
            due_at: when to publish, by the database's clock.
            delay: how long after the commit's write to publish.
            actor: who acted, for audits. This and what follows defaults to the ``trail_scope``.
            causation_id: the event or command that caused this one.
            correlation_id: what all events of one undertaking share.

        Raises:
            InvalidEvent: the event could never be sent, or *session* cannot commit it.
            PayloadTooLarge: a payload is over the limit.
            TenantRequired: nothing says whose event it is.

        What a function returns is checked at commit, which then raises these. Commit also raises
        ``IdempotencyConflict`` when the key was used with another payload, and ``SchemaMissing`` when the database
        is not migrated. Nothing is committed then, and the transaction can only be rolled back.
        """
        target = sync_session(session)
        envelope = Envelope(
            tenant=tenant_of(target, tenant),
            trail=Trail(
                actor=actor,
                causation_id=_text_of(causation_id),
                correlation_id=_text_of(correlation_id),
                traceparent=traceparent,
                tracestate=tracestate,
            ).over(current_trail()),
            tier=tier,
            ordering_key=ordering_key,
            idempotency_key=idempotency_key,
            due=due_of(due_at=due_at, delay=delay),
        )
        body = self._body(event, payload, version=version, content_type=content_type)
        bind = self._bind_in(target)
        event_id = new_event_id()
        handle = Handle(event_id, is_known=idempotency_key is None)
        emission = Emission(
            owner=open_transaction(target, bind),
            id=event_id,
            origin=Origin(source=self._source, key_retention=self._key_retention, bind=bind, waker=self._waker),
            envelope=envelope,
            body=body,
            handle=handle,
        )
        pending_of(target).emissions.append(emission)
        return handle

    @overload
    def cancel(
        self, session: "Session | scoped_session[Session]", event_id: UUID, *, tenant: str | None = None
    ) -> bool: ...

    @overload
    def cancel(
        self, session: "AsyncSession | async_scoped_session[AsyncSession]", event_id: UUID, *, tenant: str | None = None
    ) -> Awaitable[bool]: ...

    def cancel(self, session: AnySession, event_id: UUID, *, tenant: str | None = None) -> bool | Awaitable[bool]:
        """Remove a scheduled event in *session*'s transaction; say whether it was still there to remove.

        Await it with an ``AsyncSession``. A rollback brings the event back. Its idempotency key is free again.

        Args:
            tenant: whose event it must be; by default as for ``emit``.

        Raises:
            TenantRequired: nothing says whose event it is.
        """
        target = sync_session(session)
        if target is session or not hasattr(session, "run_sync"):
            return self._cancel(target, event_id, tenant)
        cancelled: Awaitable[bool] = session.run_sync(self._cancel, event_id, tenant)
        return cancelled

    def _cancel(self, session: Session, event_id: UUID, tenant: str | None) -> bool:
        owner_tenant = tenant_of(session, tenant)
        bind = self._bind_in(session)
        owner = open_transaction(session, bind)
        pending = pending_of(session)
        if pending.is_waiting(event_id, tenant=owner_tenant):
            pending.cancellations.append(Cancellation(owner=owner, id=event_id))
            return True
        return rows.cancel(session.connection(bind_arguments={"bind": bind}), tenant=owner_tenant, event_id=event_id)

    def _body(
        self, event: EventModel | Callable[[], EventModel] | str, payload: object, *, version: int, content_type: str
    ) -> Body | Callable[[], Body]:
        bytes_max = self._payload_bytes_max
        if isinstance(event, str):

            def plain(value: object) -> Body:
                return body_of_plain(
                    event, value, version=version, content_type=content_type, payload_bytes_max=bytes_max
                )

            return (lambda: plain(payload())) if callable(payload) else plain(payload)
        if payload is not None:
            raise InvalidEvent("payload: want none beside a typed event, got one")
        if isinstance(event, EventModel) or not callable(event):
            return body_of_model(event, payload_bytes_max=bytes_max)
        return lambda: body_of_model(event(), payload_bytes_max=bytes_max)

    def _bind_in(self, session: Session) -> Engine | Connection:
        """Return what *session* reaches the outbox by, which opens no connection."""
        if self._bind is not None:
            # A session on the app's own connection stays on it; another one would be outside its transaction.
            outer = session.bind
            return outer if isinstance(outer, Connection) and outer.engine is self._bind else self._bind
        try:
            bind = session.get_bind(clause=_ANY_ROW)
        except UnboundExecutionError:
            raise InvalidEvent(
                "emit: want Outbox(bind=...), since this session has no database for it, got none"
            ) from None
        if bind.dialect.name != "postgresql":
            raise InvalidEvent(f"emit: want a session on PostgreSQL, got one on {bind.dialect.name}")
        return bind


def _text_of(value: UUID | str | None) -> str | None:
    return str(value) if isinstance(value, UUID) else value
