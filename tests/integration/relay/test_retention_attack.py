"""A client as wrong as can be asks for every slot to be truncated, at once and in every way; no event is lost."""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from uuid import UUID, uuid4

import psycopg
import pytest

from migrations.ring import Ring
from outbox.inprocess import InProcessBroker
from outbox_admin import migrate
from tests.integration.relay.faulty_publisher import FaultyPublisher
from tests.integration.relay.running import App, emit, queued, start
from tests.support.wait import until

SLOTS = 4
SECONDS = 6.0
TENANTS = [f"t{number}" for number in range(6)]
SILENT = "t0"
LEVELS = ("read uncommitted", "read committed", "repeatable read", "serializable")
KEEP = ("interval '0'", "interval '-1 day'", "null")


@pytest.fixture
def url(database: str) -> str:
    """A ring that turns every four seconds."""
    migrate.upgrade(database, chains=("outbox",), ring=Ring(slots=SLOTS, slot_seconds=1))
    return database


class Attack:
    """What the attackers did and saw."""

    def __init__(self, url: str) -> None:
        self.answers: Counter[str] = Counter()
        self.committed: list[tuple[UUID, str, str]] = []
        """Event, tenant and transaction."""
        self.groups: dict[str, str] = {"default": "1:1:"}
        """Each group's first snapshot."""
        self.over = threading.Event()
        self._url = url
        self._lock = threading.Lock()

    def emitter(self, seed: int) -> None:
        """Commit, roll back and prepare, some of it long after the slot's turn has passed."""
        rng = random.Random(seed)
        with psycopg.connect(self._url) as app:
            while not self.over.wait(rng.random() * 0.02):
                tenant = rng.choice(TENANTS)
                xid = str(_one(app, "select pg_current_xact_id()::text"))
                events = emit(app, tenant, count=rng.randint(1, 5))
                if rng.random() < 0.05:
                    self.over.wait(rng.random() * 1.5)
                if rng.random() < 0.1:
                    app.rollback()
                    continue
                if rng.random() < 0.05:
                    self._in_two_phases(app, rng)
                else:
                    app.commit()
                with self._lock:
                    self.committed += [(event, tenant, xid) for event in events]

    def truncator(self, level: str) -> None:
        """Ask for every slot in one transaction, with rows of its own, and without."""
        rng = random.Random(level)
        with psycopg.connect(self._url) as app:
            while not self.over.wait(0.01):
                try:
                    app.execute(f"set transaction isolation level {level}")
                    emit(app, rng.choice(TENANTS)) if rng.random() < 0.2 else app.execute("select 1")
                    for slot in range(SLOTS):
                        answer = _one(app, f"select outbox.truncate_slot({slot}, {rng.choice(KEEP)})")
                        self.answers[str(answer)] += 1
                except psycopg.errors.InvalidTransactionState:
                    self.answers[f"refused {level}"] += 1
                except psycopg.errors.DeadlockDetected:
                    self.answers["deadlock"] += 1
                    app.rollback()
                    continue
                app.rollback() if rng.random() < 0.2 or level != "read committed" else self._commit_own(app)

    def adder(self) -> None:
        """Add groups, and be slow to commit them."""
        with psycopg.connect(self._url) as app:
            for number in range(3):
                name = f"late-{number}"
                app.execute("select outbox.add_group(%s)", (name,))
                first = str(_one(app, f"select lo::text from outbox.bucket where group_name = '{name}' limit 1"))
                self.over.wait(1.4)
                app.commit()
                self.groups[name] = first

    def mover(self) -> None:
        """Move bases back to where they were a while ago, and be slow to commit that."""
        rng = random.Random(7)
        with psycopg.connect(self._url) as app:
            while not self.over.is_set():
                stood = app.execute("select group_name, bucket, lo::text from outbox.bucket").fetchall()
                app.commit()
                self.over.wait(0.7)
                for group, bucket, lo in rng.sample(stood, 8):
                    app.execute(
                        "update outbox.bucket set lo = %s where group_name = %s and bucket = %s", (lo, group, bucket)
                    )
                self.over.wait(0.2)
                app.commit()

    def _commit_own(self, app: App) -> None:
        own = app.execute(
            "select id, tenant, xid::text from outbox.event where xid = pg_current_xact_id_if_assigned()"
        ).fetchall()
        app.commit()
        with self._lock:
            self.committed += [(event, str(tenant), str(xid)) for event, tenant, xid in own if isinstance(event, UUID)]

    def _in_two_phases(self, app: App, rng: random.Random) -> None:
        name = uuid4().hex
        app.execute(f"prepare transaction '{name}'")
        app.commit()
        self.over.wait(rng.random() * 2)
        app.autocommit = True
        app.execute(f"commit prepared '{name}'")
        app.autocommit = False


async def test_no_event_is_lost_to_a_client_that_truncates_all_it_can(url: str, broker: InProcessBroker) -> None:
    """django-outbox-pattern's retention; FerroEHR#3330."""
    attack = Attack(url)
    publisher = FaultyPublisher(broker)
    began = time.monotonic()
    # Behind, and then catching up, while slots are waited for.
    publisher.is_silent = lambda outgoing: outgoing.lane.tenant == SILENT and time.monotonic() < began + SECONDS / 3
    relay = start(url, publisher)
    await relay.owns()
    jobs: list[Callable[[], None]] = [attack.adder, attack.mover]
    jobs += [lambda level=level: attack.truncator(level) for level in LEVELS]  # type: ignore[misc]
    jobs += [lambda seed=seed: attack.emitter(seed) for seed in range(5)]  # type: ignore[misc]
    threads = [asyncio.create_task(asyncio.to_thread(job)) for job in jobs]
    everything = {"truncated", "unpublished", "busy", "retained", "current"}
    everything |= {f"refused {level}" for level in LEVELS if level != "read committed"}

    def has_seen_everything() -> bool:
        return time.monotonic() > began + SECONDS and everything <= attack.answers.keys()

    try:
        await until(has_seen_everything, deadline_s=40, what="every answer there is")
    finally:
        attack.over.set()
        await asyncio.gather(*threads)
    print(attack.answers, len(attack.committed), "events")

    def owed() -> list[tuple[str, UUID]]:
        arrived = {
            (group, event)
            for group in attack.groups
            for tenant in TENANTS
            for event in queued(broker, tenant, group=group)
        }
        return [one for one in owed_to_groups if one not in arrived]

    with psycopg.connect(url) as app:
        owed_to_groups = _owed(app, attack)
    assert len(owed_to_groups) > len(attack.committed)
    await until(lambda: not owed(), deadline_s=30, what="every event that is owed to a group")
    await relay.crash()


def _owed(app: App, attack: Attack) -> list[tuple[str, UUID]]:
    """Who must be sent which event: those that the group's first snapshot does not show."""
    rows = app.execute(
        """select g.name, e.id from unnest(%s::text[], %s::text[]) g (name, first),
               unnest(%s::uuid[], %s::text[]) e (id, xid)
           where not pg_visible_in_snapshot(e.xid::xid8, g.first::pg_snapshot)""",
        (
            list(attack.groups),
            list(attack.groups.values()),
            [event for event, _, _ in attack.committed],
            [xid for _, _, xid in attack.committed],
        ),
    ).fetchall()
    return [(str(group), event) for group, event in rows if isinstance(event, UUID)]


def _one(app: App, query: str) -> object:
    row = app.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]
