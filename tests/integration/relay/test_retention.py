"""Room is made in the ring without removing what anybody still needs, whoever asks and however."""

import psycopg
import pytest

from admin import migrate
from migrations.ring import Ring
from outbox.inprocess import InProcessBroker
from relay.engine.janitor import truncate_old_slots
from tests.integration.relay.running import App, arrived, emit, running, schedule, value
from tests.support.wait import until

SLOTS = 4
TRUNCATE = "select outbox.truncate_slot(%s, interval '0')"
EVENTS = "select count(*) from outbox.event"


@pytest.fixture
def url(database: str) -> str:
    """A ring whose slots last a second each."""
    migrate.upgrade(database, chains=("outbox",), ring=Ring(slots=SLOTS, slot_seconds=1))
    return database


async def test_with_the_relay_off_and_no_retention_nothing_unpublished_scheduled_or_dead_is_removed(
    url: str, app: App, broker: InProcessBroker
) -> None:
    """django-outbox-pattern's retention; FerroEHR#3330: old meant old, published or not."""
    async with running(url, broker) as relay:
        published = emit(app, "published", count=3)
        app.commit()
        await arrived(broker, published, "published")
        await relay.hand_over()
    unpublished = emit(app, "unpublished", count=3)
    schedule(app, due_in_s=3600.0)
    app.execute(
        """insert into outbox.deferred (group_name, state, category, reason, attempts, due_at, id, bucket, tier, tenant,
               tenant_hash, type, data_version, source, content_type, payload)
           select 'default', 'dead', 'too_large', 'r', 1, now(), id, bucket, tier, tenant, tenant_hash, type,
               data_version, source, content_type, payload from outbox.event where tenant = 'published' limit 1"""
    )
    app.commit()
    seen: set[str] = set()

    async def has_wrapped() -> bool:
        seen.update((await truncate_old_slots(url, retention_s=0.0)).values())
        is_old = value(app, "select max(emitted_at) < clock_timestamp() - interval '5 s' from outbox.event")
        app.commit()
        return bool(is_old)

    await until(has_wrapped, deadline_s=20, every_s=0.2)
    assert seen <= {"current", "unpublished", "truncated"}
    assert "unpublished" in seen
    assert value(app, "select count(*) from outbox.event where tenant = 'unpublished'") == 3
    assert value(app, "select count(*) from outbox.scheduled") == 1
    assert value(app, "select count(*) from outbox.deferred") == 1
    app.commit()
    async with running(url, broker):
        await arrived(broker, unpublished, "unpublished")


async def test_what_every_group_has_been_sent_is_truncated_once_it_is_old_enough(
    url: str, app: App, broker: InProcessBroker
) -> None:
    async with running(url, broker):
        events = emit(app, count=100)
        app.commit()
        await arrived(broker, events)

        async def is_empty() -> bool:
            await truncate_old_slots(url, retention_s=0.0)
            count = value(app, EVENTS)
            app.commit()
            return count == 0

        await truncate_old_slots(url, retention_s=3600.0)
        assert value(app, EVENTS) == 100
        app.commit()
        await until(is_empty, deadline_s=20, every_s=0.2)
        later = emit(app, count=10)
        app.commit()
        await arrived(broker, later)


async def test_a_group_that_has_not_been_sent_an_event_keeps_it(url: str, app: App, broker: InProcessBroker) -> None:
    app.execute("select outbox.add_group('audit')")
    app.commit()
    app.execute("update outbox.bucket set expires_at = 'infinity', token = -1 where group_name = 'audit'")
    app.commit()
    async with running(url, broker):
        events = emit(app, count=5)
        app.commit()
        await arrived(broker, events)
    slot = await _not_current(app)
    assert value(app, TRUNCATE, slot) == "unpublished"
    assert value(app, EVENTS) == 5


async def test_a_stream_that_is_behind_keeps_its_tenants_events(url: str, app: App) -> None:
    events = emit(app, "behind", count=5)
    app.commit()
    slot = await _not_current(app)
    app.execute("update outbox.bucket set lo = pg_current_snapshot()")
    app.execute(
        """insert into outbox.stream
           select 'default', tier, tenant, tenant_hash, bucket, '1:1:', pg_current_snapshot(), min(seq), max(seq)
           from outbox.event group by tier, tenant, tenant_hash, bucket"""
    )
    app.commit()
    assert value(app, TRUNCATE, slot) == "unpublished"
    app.execute("delete from outbox.stream")
    assert value(app, TRUNCATE, slot) == "truncated"
    assert value(app, EVENTS) == 0
    assert len(events) == 5


async def test_a_bucket_without_a_position_keeps_everything(url: str, app: App) -> None:
    emit(app)
    app.commit()
    slot = await _not_current(app)
    app.execute("update outbox.bucket set lo = pg_current_snapshot()")
    app.execute("delete from outbox.bucket where bucket = 0")
    assert value(app, TRUNCATE, slot) == "unpublished"


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_truncation_under_an_old_snapshot_is_refused(url: str, app: App, other: App, level: str) -> None:
    """A check made in a snapshot from before the lock does not see what was committed since, and drops it."""
    app.execute(f"set transaction isolation level {level}")
    app.execute("select 1")
    emit(other)
    other.commit()
    with pytest.raises(psycopg.errors.InvalidTransactionState, match="want read committed"):
        app.execute(TRUNCATE, (0,))


async def test_truncation_never_waits_behind_who_reads_or_writes_a_slot(url: str, app: App, other: App) -> None:
    emit(app)
    app.commit()
    slot = await _not_current(app)
    app.execute("update outbox.bucket set lo = pg_current_snapshot()")
    app.commit()
    other.execute(f"select count(*) from outbox.event_{slot}")
    app.execute("set lock_timeout = '1 s'")
    assert value(app, TRUNCATE, slot) == "busy"


async def test_a_slot_that_is_still_needed_is_never_locked(url: str, app: App, other: App) -> None:
    """Every relay's poll would wait behind that lock."""
    emit(app)
    app.commit()
    slot = await _not_current(app)
    other.execute(f"select count(*) from outbox.event_{slot}")
    assert value(app, TRUNCATE, slot) == "unpublished"


async def _not_current(app: App) -> int:
    """The one slot with events, once it is no longer written to."""
    slot = value(app, "select min(slot) from outbox.event")
    assert isinstance(slot, int)
    app.commit()

    def has_passed() -> bool:
        current = value(app, "select outbox.current_slot()")
        app.commit()
        return current != slot

    await until(has_passed, deadline_s=5)
    return slot
