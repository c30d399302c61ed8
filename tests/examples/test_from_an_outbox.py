"""Moving from a hand-written outbox while old and new code write: each event once, in order, by either way."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

import pytest
import sqlalchemy as sa
from sqlalchemy import make_url

from tests.examples.conftest import QUICK, Place
from tests.examples.stage import EXAMPLES
from tests.support.processes import Processes
from tests.support.wait import until

_ROOT = Path(__file__).parents[2]
_FOLDER = EXAMPLES / "from_an_outbox"
_PAGE = _ROOT / "docs" / "how-to" / "from-an-outbox.md"
Running: TypeAlias = "asyncio.Task[object]"
_AGGREGATES = [f"order-{number}" for number in range(5)]


@pytest.fixture
def moving(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The app, beside the script that it imports."""
    monkeypatch.syspath_prepend(_FOLDER)
    from tests.examples import moving  # noqa: PLC0415 - only now can it be

    return moving


async def test_each_event_is_handled_once_and_in_order_while_old_and_new_code_write(
    place: Place, moving: ModuleType, processes: Processes
) -> None:
    url = make_url(place.owner_url).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    settings = {**QUICK, "DATABASE_URL": place.owner_url, "RABBITMQ_URL": place.rabbitmq_url}
    migrate = processes.start("outbox", "migrate", settings=settings)
    assert await migrate.ended() == 0, migrate.output
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text(_block("CREATE TABLE app_outbox")))
        moving.metadata.create_all(connection)
        connection.execute(sa.insert(moving.aggregate), [{"id": one, "number": 0} for one in _AGGREGATES])
    engine.dispose()
    stops = {name: threading.Event() for name in ("old poller", "old code", "new poller", "new code")}

    def start(what: str, function: Callable[..., object], *arguments: object, **options: object) -> Running:
        running = partial(function, url, *arguments, stops[what], **options)
        return asyncio.create_task(asyncio.to_thread(running))

    async def stop(what: str, task: Running) -> object:
        stops[what].set()
        return await task

    # As it was.
    old_poller = start("old poller", moving.poll, [moving.TYPE, moving.OTHER])
    old_code = start("old code", moving.write, _AGGREGATES, is_new_code=False)
    await place.until_value("SELECT count(*) > 50 FROM handled WHERE is_old", True)
    # One type is handed over.
    processes.start("outbox-relay", "run", settings=settings)
    app = "tests.examples.moving:consumer"
    processes.start("outbox-consumer", "run", app, settings=settings | {"PYTHONPATH": f"{_FOLDER}:{_ROOT}"}, cwd=_ROOT)
    await stop("old poller", old_poller)
    new_poller = start("new poller", moving.poll, [moving.OTHER])
    mover = processes.start("python", "move_outbox.py", moving.TYPE, settings=settings, cwd=_FOLDER)
    await place.until_value("SELECT count(*) > 20 FROM handled WHERE NOT is_old", True)
    # New code, beside the old for a while.
    new_code = start("new code", moving.write, _AGGREGATES, is_new_code=True)
    await place.until_value("SELECT count(*) > 50 FROM outbox.event WHERE idempotency_key IS NULL", True)
    mover.kill()  # whenever: what it has not committed still waits
    mover = processes.start("python", "move_outbox.py", moving.TYPE, settings=settings, cwd=_FOLDER)
    counts = [await stop("old code", old_code), await stop("new code", new_code)]
    assert all(counts)

    changes = place.value("SELECT sum(number) FROM aggregate")
    assert changes == sum(counts)  # type: ignore[arg-type]
    await place.until_value(
        "SELECT count(DISTINCT (aggregate_id, number)) FROM handled WHERE type = %s", changes, moving.TYPE
    )
    await until(lambda: place.value(_block("-- waits")) == 0, deadline_s=30.0, what="nothing to wait in the old table")
    await place.until_value("SELECT count(*) FROM app_outbox WHERE published_at IS NULL", 0)
    await stop("new poller", new_poller)
    assert mover.is_running(), mover.output
    # Once each, by one way or the other ...
    assert place.value("SELECT count(*) FROM handled WHERE type = %s", moving.TYPE) == changes
    assert place.value("SELECT count(*) FROM handled WHERE type = %s AND NOT is_old", moving.OTHER) == 0
    # ... and in the order in which they happened, across the switch too.
    orders = place.rows(
        "SELECT aggregate_id, array_agg(number ORDER BY at) FROM handled WHERE type = %s GROUP BY aggregate_id",
        moving.TYPE,
    )
    assert all(numbers == sorted(numbers) for _, numbers in orders)
    # What the page tells people to look at says the same.
    await place.until_value(_block("-- not handled"), 0)
    place.rows(
        "DELETE FROM consumer.ledger WHERE event_id ="
        " (SELECT id FROM outbox.event WHERE idempotency_key IS NOT NULL LIMIT 1)"
    )
    assert place.value(_block("-- not handled")) == 1


def _block(begins: str) -> str:
    """The page's own block of SQL that begins so."""
    (found,) = (part for part in _PAGE.read_text().split("```sql\n") if part.startswith(begins))
    return found.partition("```")[0]
