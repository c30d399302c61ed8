"""Whose work this is: the tenant of a session or of the running code, and row-level security's setting.

The setting is made by ``set_config(..., true)`` at the start of each transaction and so ends with it,
whatever happens and whoever gets the connection next. It is never made outside a transaction.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from sqlalchemy import Connection, bindparam, event, func, select
from sqlalchemy.orm import Session, SessionTransaction

from outbox.errors import ConfigError, InvalidEvent, TenantRequired
from outbox.naming import check_tenant
from outbox.schema import TENANT_SETTING
from outbox.sessions import AnySession, is_autocommit, is_postgresql, sync_session

#: Where a session's tenant is kept: ``session.info["tenant"]``.
TENANT_INFO: Final = "tenant"
#: The settings that a session's transactions have without our making them: ``session.info[SETTINGS_MADE_INFO]``.
SETTINGS_MADE_INFO: Final = "fairpost.settings_made"
# What the setting holds in the session's open transaction; there only once it has a connection.
_IN_FORCE_INFO: Final = "fairpost.tenant_in_force"

_current: ContextVar[str | None] = ContextVar("fairpost_tenant", default=None)
_settings: Final[set[str]] = set()
_SET_CONFIG: Final = select(func.set_config(bindparam("setting"), bindparam("tenant"), True))


@contextmanager
def tenant_scope(tenant: str) -> Iterator[None]:
    """Let *tenant* be whose work is done inside, for emits and for transactions that begin inside.

    Raises:
        InvalidEvent: *tenant* cannot be one.
    """
    token = _current.set(check_tenant(tenant))
    _apply_by_default()
    try:
        yield
    finally:
        _current.reset(token)


def enter_tenant(tenant: str) -> None:
    """As ``tenant_scope`` for one that was checked, to the end of the running task, which nothing else is done in."""
    _current.set(tenant)
    _apply_by_default()


def current_tenant() -> str | None:
    """The tenant of the innermost scope, if there is one."""
    return _current.get()


def bind_tenant(session: AnySession, tenant: str, *, setting: str | None = TENANT_SETTING) -> None:
    """Let *tenant* be whose work *session* does: for emits, and for row-level security in each of its transactions.

    Bind before the first statement of a transaction; the setting is made as it begins.

    Raises:
        InvalidEvent: *tenant* cannot be one, or the session's open transaction works for another.
    """
    target = sync_session(session)
    check_tenant(tenant)
    if target.info.get(_IN_FORCE_INFO, tenant) != tenant:
        raise InvalidEvent(
            "tenant: want it bound before the transaction's first statement, got one that works for another or for "
            "none: commit or roll back first"
        )
    target.info[TENANT_INFO] = tenant
    apply_at_begin(setting)


def tenant_of(session: Session, tenant: str | None) -> str:
    """Return whose event it is: *tenant*, else the session's, else the scope's.

    Raises:
        TenantRequired: there is none of them.
        InvalidEvent: it cannot be a tenant.
    """
    found = tenant if tenant is not None else _known(session)
    if found is None:
        raise TenantRequired("tenant: want one by argument, bind_tenant or tenant_scope, got none")
    return check_tenant(found)


def apply_at_begin(setting: str | None) -> None:
    """From now on, make *setting* in each transaction of a session that has a tenant; ``None`` makes none."""
    if setting is not None:
        if "." not in setting:
            raise ConfigError(f"tenant_setting: want a name with a dot, as app.current_tenant_id, got {setting[:80]!r}")
        _settings.add(setting)
    if not event.contains(Session, "after_begin", _after_begin):
        event.listen(Session, "after_begin", _after_begin)
        event.listen(Session, "after_transaction_end", _after_transaction_end)


def _apply_by_default() -> None:
    """Where no outbox has said which setting it is to be, or none: make ours. A service that only handles has none."""
    if not (_settings or event.contains(Session, "after_begin", _after_begin)):
        apply_at_begin(TENANT_SETTING)


def _after_begin(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    if transaction.nested or not is_postgresql(connection):
        return
    tenant = _known(session)
    session.info[_IN_FORCE_INFO] = tenant
    if tenant is None:
        return
    check_tenant(tenant)
    if is_autocommit(connection):
        # Outside a transaction the setting would silently last for one statement, and every policy see no tenant.
        raise InvalidEvent("tenant: want a session with transactions, got one in AUTOCOMMIT")
    for setting in _settings - session.info.get(SETTINGS_MADE_INFO, frozenset()):
        connection.execute(_SET_CONFIG, {"setting": setting, "tenant": tenant})


def _after_transaction_end(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session.info.pop(_IN_FORCE_INFO, None)


def _known(session: Session) -> str | None:
    tenant: str | None = session.info.get(TENANT_INFO)
    return tenant if tenant is not None else _current.get()
