"""Room is made in the ring without removing what anybody still needs, whoever asks and however."""

from collections.abc import AsyncIterator

import psycopg
import pytest

from migrations.ring import Ring
from outbox.errors import ConfigError
from outbox.inprocess import InProcessBroker
from outbox_admin import migrate
from relay import status
from relay.engine import janitor
from relay.engine.janitor import truncate_old_slots
from relay.log import slots, store
from tests.integration.relay.running import App, arrived, emit, queued, running, schedule, value
from tests.support.wait import until

SLOTS = 4
TRUNCATE = "select outbox.truncate_slot(%s, interval '0')"
EVENTS = "select count(*) from outbox.event"


@pytest.fixture
def url(database: str) -> str:
    """A ring whose slots last a second each."""
    migrate.upgrade(database, chains=("outbox",), ring=Ring(slots=SLOTS, slot_seconds=1))
    return database


@pytest.fixture
async def session(url: str) -> AsyncIterator[store.Connection]:
    """A janitor's."""
    connection = await janitor.connect(url)
    yield connection
    await store.close(connection)


async def test_with_the_relay_off_and_no_retention_nothing_unpublished_scheduled_or_dead_is_removed(
    url: str, app: App, broker: InProcessBroker, session: store.Connection
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
        seen.update((await truncate_old_slots(session, retention_s=0.0)).values())
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
    url: str, app: App, broker: InProcessBroker, session: store.Connection
) -> None:
    async with running(url, broker):
        events = emit(app, count=100)
        app.commit()
        await arrived(broker, events)

        async def is_empty() -> bool:
            await truncate_old_slots(session, retention_s=0.0)
            count = value(app, EVENTS)
            app.commit()
            return count == 0

        await truncate_old_slots(session, retention_s=3600.0)
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


async def test_what_comes_between_the_first_look_and_the_lock_is_seen(url: str, app: App) -> None:
    emit(app)
    app.commit()
    slot = await _not_current(app)
    _publish_all(app)
    app.execute(
        """
        alter function outbox.is_slot_published(integer) rename to is_really_published;
        create function outbox.is_slot_published(target integer) returns boolean language plpgsql as $$
        declare
            found boolean := outbox.is_really_published(target);
        begin
            insert into outbox.event (slot, id, bucket, tier, tenant, tenant_hash, type, data_version, source,
                content_type, payload)
            select target, gen_random_uuid(), bucket, tier, tenant, tenant_hash, type, data_version, source,
                content_type, payload from outbox.event limit 1;
            return found;
        end
        $$
        """
    )
    assert value(app, TRUNCATE, slot) == "unpublished"


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


async def test_a_group_that_is_being_added_keeps_what_was_committed_since_its_snapshot(
    url: str, app: App, other: App
) -> None:
    """Its bases are not to be seen yet, and what follows them is published to all others."""
    other.execute("select outbox.add_group('audit')")
    emit(app)
    app.commit()
    slot = await _not_current(app)
    _publish_all(app)
    assert value(app, TRUNCATE, slot) == "busy"
    other.commit()
    assert value(app, TRUNCATE, slot) == "unpublished"


_MOVED_BACK = {
    "bucket": "update outbox.bucket set lo = '1:1:'",
    "stream": """
        insert into outbox.stream (group_name, tier, tenant, tenant_hash, bucket, lo, hi, after, z)
        select 'default', tier, tenant, tenant_hash, bucket, '1:1:', pg_current_snapshot(), 0, seq from outbox.event""",
}


@pytest.mark.parametrize("table", ["bucket", "stream"])
async def test_a_position_that_is_being_moved_back_keeps_what_lies_behind_it(
    url: str, app: App, other: App, table: str
) -> None:
    emit(app)
    app.commit()
    slot = await _not_current(app)
    _publish_all(app)
    other.execute(_MOVED_BACK[table])
    assert value(app, TRUNCATE, slot) == "busy"
    other.commit()
    assert value(app, TRUNCATE, slot) == "unpublished"


async def test_positions_of_another_database_truncate_nothing(url: str, app: App) -> None:
    """In a restored dump, or on a promoted standby, they show rows that were never sent."""
    emit(app)
    app.commit()
    slot = await _not_current(app)
    _publish_all(app)
    app.execute("update outbox.origin set timeline = '0000FFFF'")
    assert value(app, TRUNCATE, slot) == "foreign"
    app.rollback()
    app.execute("update outbox.bucket set lo = '9999999:9999999:' where bucket = 7")
    assert value(app, TRUNCATE, slot) == "foreign"


async def test_without_a_janitor_rows_go_on_into_slots_that_still_keep_old_ones(
    url: str, app: App, broker: InProcessBroker, session: store.Connection
) -> None:
    """hookdeck/outpost#1027: rows were refused when nobody had made room for them."""
    everything = []
    async with running(url, broker):
        everything += emit(app, count=5)
        app.commit()
        slot = value(app, "select min(slot) from outbox.event")
        app.commit()

        def has_come_round() -> bool:
            everything.extend(emit(app))
            app.commit()
            spread = value(
                app, "select max(emitted_at) - min(emitted_at) > '1.1 s' from outbox.event where slot = %s", slot
            )
            app.commit()
            return bool(spread)

        await until(has_come_round, deadline_s=SLOTS * 2 + 2, every_s=0.1)
        await arrived(broker, everything)
        assert queued(broker) == everything
        assert value(app, EVENTS) == len(everything)
        app.commit()
        kept = {one.slot: one for one in await slots.kept(session, within_s=5.0)}
        assert isinstance(slot, int)
        assert kept[slot].oldest_s > SLOTS - 1

        async def is_empty() -> bool:
            await truncate_old_slots(session, retention_s=0.0)
            count = value(app, EVENTS)
            app.commit()
            return count == 0

        await until(is_empty, deadline_s=20, every_s=0.2)


async def test_a_slot_that_cannot_be_emptied_when_its_turn_comes_takes_new_rows_beside_the_old(
    url: str, app: App, broker: InProcessBroker, session: store.Connection
) -> None:
    everything = emit(app, count=3)
    app.commit()
    slot = value(app, "select min(slot) from outbox.event")
    app.commit()
    assert isinstance(slot, int)
    answers: set[str] = set()

    async def has_come_round() -> bool:
        answers.add((await truncate_old_slots(session, retention_s=0.0))[slot])
        everything.extend(emit(app))
        app.commit()
        spread = value(
            app, "select max(emitted_at) - min(emitted_at) > '1.1 s' from outbox.event where slot = %s", slot
        )
        app.commit()
        return bool(spread)

    await until(has_come_round, deadline_s=SLOTS * 2 + 2, every_s=0.1)
    assert answers == {"current", "unpublished"}
    async with running(url, broker):
        await arrived(broker, everything)
    assert queued(broker) == everything


async def test_what_keeps_an_overdue_slot_is_told(url: str, app: App, other: App, session: store.Connection) -> None:
    emit(app)
    app.commit()
    ring = await slots.read_ring(session, within_s=5.0)

    async def overdue() -> slots.KeptSlot | None:
        kept = await slots.kept(session, within_s=5.0)
        return next((one for one in kept if one.is_overdue(ring)), None)

    slot = await until(overdue, deadline_s=SLOTS + 2, every_s=0.01)
    assert slot is not None
    told = status.problems(await status.read(url))
    assert any(one.startswith(f"slot {slot.slot} keeps events of 0.0 days ago: ") for one in told), told
    assert await slots.why_kept(session, slot, within_s=5.0) == "not every group was sent all of it"
    _publish_all(app)
    other.execute("set application_name = 'a report'")
    other.execute("select count(*) from outbox.event")
    assert (await slots.why_kept(session, slot, within_s=5.0)).startswith("in use by a report, process ")
    other.rollback()
    assert await slots.why_kept(session, slot, within_s=5.0) == "no relay's janitor has come by"


async def test_a_retention_that_the_ring_cannot_hold_is_refused(session: store.Connection) -> None:
    """Every slot would be kept until it is written to again, and the log would only grow."""
    ring = await slots.read_ring(session, within_s=5.0)
    slots.check_retention(2.0, ring)
    with pytest.raises(ConfigError, match=r"^retention: want at most 2.*e-05 days, which the log's 4 slots of .* got"):
        slots.check_retention(3.0, ring)


def _publish_all(app: App) -> None:
    """Say of everything that it was sent to every group."""
    app.execute("update outbox.bucket set lo = pg_current_snapshot() where group_name = 'default'")
    app.commit()


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
