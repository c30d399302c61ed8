"""What we ask of a SQLAlchemy session: which it is, on what database, and that it has transactions. No I/O."""

from typing import TYPE_CHECKING

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from outbox.errors import InvalidEvent

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

    AnySession = Session | AsyncSession | scoped_session[Session] | async_scoped_session[AsyncSession]
else:
    AnySession = object


def sync_session(session: object) -> Session:
    """Return the ``Session`` that *session* is, or stands before.

    Raises:
        InvalidEvent: it is no session of SQLAlchemy's.
    """
    if hasattr(session, "registry"):  # scoped_session and async_scoped_session
        session = session.registry()
    found = getattr(session, "sync_session", session)
    if not isinstance(found, Session):
        raise InvalidEvent(f"session: want a Session or an AsyncSession, got {type(session).__name__}")
    return found


def is_postgresql(connection: Connection) -> bool:
    """Whether it speaks to PostgreSQL."""
    return connection.dialect.name == "postgresql"


def is_autocommit(connection: Connection) -> bool:
    """Whether each statement commits by itself, by the connection's options, the engine's or the driver's own state.

    Asked of every session's connection, so it answers only for PostgreSQL: other dialects may be unable to.
    """
    if not is_postgresql(connection):
        return False
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    driver = connection.connection.dbapi_connection
    return driver is not None and connection.dialect.detect_autocommit_setting(driver)
