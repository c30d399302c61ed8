import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Outbox
from tests.integration.outbox.killed_app import EVENTS_PER_ORDER
from tests.integration.outbox.shop import Order, OrderPlaced, logged, numbers

_ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_app_killed_amid_its_commits_leaves_whole_transactions_and_no_lock(
    engine: sa.Engine, outbox: Outbox, number: signal.Signals
) -> None:
    """janbjorge/pgqueuer#630, #475: work cut off in the middle stayed locked, or was half done."""
    reported = told_until_killed(engine, number, after=random.Random(number).randrange(20, 60))

    with Session(engine) as session, session.begin():
        session.execute(sa.text("set local lock_timeout = '5s'"))
        outbox.emit(session, OrderPlaced(order_id=0), tenant="acme", ordering_key="k")
    with Session(engine) as session:
        committed = set(session.scalars(sa.select(Order.id)))
    events = Counter(json.loads(row.payload)["order_id"] for row in logged(engine))
    assert events == Counter({order: EVENTS_PER_ORDER for order in committed} | {0: 1})
    assert set(reported) <= committed
    drawn = numbers(engine, "k")
    assert drawn == list(range(drawn[0], drawn[0] + len(drawn)))


def told_until_killed(engine: sa.Engine, number: signal.Signals, *, after: int) -> list[int]:
    """Run the app, end it by the signal once it has told of so many commits, and return all it told."""
    url = engine.url.render_as_string(hide_password=False)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.integration.outbox.killed_app", url],
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
    ) as app:
        assert app.stdout is not None
        told = [int(app.stdout.readline()) for _ in range(after)]
        app.send_signal(number)
        rest = app.stdout.read().splitlines()
    return told + [int(line) for line in rest if line]
