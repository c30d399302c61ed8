"""A slot's connection to the database, and the session that a handler is given on it."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGcancel
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from consumer.store.stored import Connection
from outbox.errors import StoreUnavailable
from outbox.schema import TENANT_SETTING
from outbox.shell.severed import sever
from outbox.tenancy import SETTINGS_MADE_INFO, TENANT_INFO

_ENDED: Final = "fairpost_ended_by"
_BY_HANDLER: Final = "handler"
_BY_US: Final = "engine"


class SlotConnection:
    """One connection, used by one attempt at a time; opened when first asked for, and again once it was lost.

    It belongs to the event loop that opened it. *engine* must not pool, so that several loops may share it.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._bound: AsyncConnection | None = None
        self._raw: Connection | None = None

    @property
    def is_lost(self) -> bool:
        """Whether what was open is gone."""
        return self._raw is None or self._raw.closed

    async def open(self) -> Connection:
        """The driver's connection, in no transaction. Raises StoreUnavailable."""
        if self._raw is not None and not self._raw.closed:
            return self._raw
        await self.close()
        try:
            self._bound = await self._engine.connect()
            raw = await self._bound.get_raw_connection()
        except (DBAPIError, OSError) as error:
            await self.close()
            raise StoreUnavailable(f"database: want a connection, got {_first_line(error)}") from error
        self._raw = cast("Connection", raw.driver_connection)
        return self._raw

    @asynccontextmanager
    async def committing(self) -> AsyncIterator[Connection]:
        """The driver's connection, each statement committed by itself: one round trip. Raises StoreUnavailable."""
        raw = await self.open()
        try:
            await raw.set_autocommit(True)
            yield raw
        except psycopg.Error as error:
            raise StoreUnavailable(f"database: want it written down, got {type(error).__name__}") from error
        finally:
            await self.reset()
            if not raw.closed:
                await raw.set_autocommit(False)

    async def reset(self) -> None:
        """Leave no transaction open, whatever happened; a connection that cannot is closed. Never raises."""
        raw = self._raw
        if raw is None:
            return
        try:
            if raw.pgconn.transaction_status != TransactionStatus.IDLE:
                await raw.rollback()
        except psycopg.Error:
            await self.close()

    def sever(self) -> None:
        """Cut the connection off, from any thread: nothing that is under way on it will be committed.

        A statement that the server runs is called off beside, by a thread that may take its time.
        """
        raw = self._raw
        if raw is None or raw.closed:
            return
        with suppress(psycopg.Error):
            cancel = raw.pgconn.get_cancel()
            sever(raw)
            threading.Thread(target=_call_off, args=(cancel,), daemon=True, name="consumer-cancel").start()

    async def close(self) -> None:
        """Close. Safe to repeat, never raises."""
        bound, self._bound = self._bound, None
        raw, self._raw = self._raw, None
        if raw is not None:
            await raw.close()
        if bound is not None:
            with suppress(DBAPIError):  # it is gone, which is what was wanted
                # What SQLAlchemy knows of it is wrong by now, and must not reach another attempt.
                await bound.invalidate()
                await bound.close()

    @asynccontextmanager
    async def session(self, *, tenant: str) -> AsyncIterator[AsyncSession]:
        """A session for *tenant* that works in the transaction the connection is in, and cannot end it unnoticed.

        Its transaction is never ended here; ``finish_session`` writes what is left in it.
        """
        bound = self._bound
        assert bound is not None  # noqa: S101 - a claim was made on it
        joined = await bound.begin()
        session = AsyncSession(
            bind=bound,
            sync_session_class=HandlerSession,
            join_transaction_mode="rollback_only",
            expire_on_commit=False,
            # The claim has made the setting, in its own round trip.
            info={TENANT_INFO: tenant, SETTINGS_MADE_INFO: frozenset({TENANT_SETTING})},
        )
        try:
            yield session
        finally:
            session.sync_session.info[_ENDED] = _BY_US
            # A lost connection, which ``reset`` closes, or a session that an abandoned handler uses this moment.
            with suppress(DBAPIError, InvalidRequestError):
                # Said aloud: closing alone would look like events that somebody forgot to commit.
                await session.rollback()
                await session.close()
                await joined.close()


class HandlerSession(Session):
    """The session of one attempt: it remembers whether the handler ended its transaction."""


@event.listens_for(HandlerSession, "after_transaction_end")
def _remember_end(session: Session, transaction: SessionTransaction) -> None:
    # A savepoint's end is the handler's own business; the outermost one's is the attempt's.
    if transaction.parent is None:
        session.info.setdefault(_ENDED, _BY_HANDLER)


async def finish_session(session: AsyncSession) -> bool:
    """Write what the handler left unwritten, and let commit hooks write; False if the handler ended the transaction.

    Nothing is committed by this. Raises what flushing and hooks raise.
    """
    info = session.sync_session.info
    if info.get(_ENDED) == _BY_HANDLER:
        return False
    info[_ENDED] = _BY_US
    if session.in_transaction():
        await session.commit()
    return True


def _call_off(cancel: PGcancel) -> None:
    with suppress(psycopg.Error):
        cancel.cancel()


def _first_line(error: BaseException) -> str:
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
