"""``outbox rebase``: the positions of another cluster mean here, row for row, what they meant there."""

import asyncio
import random
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import pytest

from outbox.errors import TransientError, WrongDatabase
from outbox.naming import bucket_of, tenant_hash
from outbox.shell.database import Connection, connect
from outbox_admin.groups import add_group
from outbox_admin.rebase import preview, rebase
from outbox_admin.rebase_plan import Snapshot
from tests.support.wait import until

TENANTS = ("acme", "globex", "initech", "umbrella")
GROUPS = ("default", "audit", "past")

_EMIT = """
    insert into outbox.event (
        id, xid, bucket, tier, tenant, tenant_hash, type, data_version, source, content_type, payload)
    values (%s, coalesce(%s::xid8, pg_current_xact_id()), %s, 0, %s, %s, 'order.placed', 1, 'shop', 'x', '')"""
# What a relay that starts now would read and not skip.
_UNPUBLISHED = """
    select b.group_name, e.id
    from outbox.event e join outbox.bucket b using (bucket)
    left join outbox.stream s on s.group_name = b.group_name and s.tier = e.tier and s.tenant = e.tenant
    where case when s.tenant is null then not pg_visible_in_snapshot(e.xid, b.lo)
               else not pg_visible_in_snapshot(e.xid, s.hi)
                 or not pg_visible_in_snapshot(e.xid, s.lo) and e.seq > s.after end"""
_VISIBLE = f"{_UNPUBLISHED} and pg_visible_in_snapshot(e.xid, pg_current_snapshot())"
_STATE = """
    select (select string_agg(xid::text, ',' order by seq) from outbox.event),
           (select string_agg(concat_ws(' ', b), ',' order by group_name, bucket) from outbox.bucket b),
           (select string_agg(concat_ws(' ', s), ',' order by group_name, tenant) from outbox.stream s),
           (select o::text from outbox.origin o), (select count(*) from outbox.audit)"""

_WAITING_FOR_AUDIT = """
    select max(pid) from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock' and query ilike '%insert into outbox.audit%'"""


@pytest.fixture
async def connection(migrated_database: str) -> AsyncIterator[Connection]:
    async with await connect(migrated_database, application_name="test") as opened:
        yield opened


@pytest.fixture
async def other(migrated_database: str) -> AsyncIterator[Connection]:
    """One that holds what it has locked until it is told to let go."""
    async with await connect(migrated_database, application_name="test", autocommit=False) as opened:
        yield opened


async def emit(connection: Connection, tenant: str, *, xid: int | None = None) -> UUID:
    hashed, event_id = tenant_hash(tenant), uuid4()
    row = (event_id, None if xid is None else str(xid), bucket_of(hashed), tenant, hashed)
    await connection.execute(_EMIT, row)
    return event_id


async def unpublished(connection: Connection, query: str = _VISIBLE) -> set[tuple[object, object]]:
    return {(group, event_id) for group, event_id in await (await connection.execute(query.encode())).fetchall()}


async def value(connection: Connection, query: str) -> object:
    row = await (await connection.execute(query.encode())).fetchone()
    assert row is not None
    return row[0]


async def state(connection: Connection) -> object:
    return await (await connection.execute(_STATE.encode())).fetchone()


async def come_from_elsewhere(connection: Connection) -> None:
    await connection.execute("update outbox.origin set system_identifier = system_identifier + 1")


async def a_log_of_another_cluster(connection: Connection, *, first_xid: int, rng: random.Random) -> None:
    """Events with transaction numbers from *first_xid* on, and three groups at positions of all kinds."""
    for group in GROUPS[1:]:
        await connection.execute("select outbox.add_group(%s)", (group,))
    xids = list(range(first_xid, first_xid + 120))
    rng.shuffle(xids)  # of two transactions the first to begin need not be the first to write
    seqs = {}
    for xid in xids:
        for _ in range(rng.randrange(1, 3)):
            await emit(connection, rng.choice(TENANTS), xid=xid)
        seqs[xid] = await value(connection, "select last_value from outbox.event_seq")
    # Snapshots of one cluster: what has ended in one has ended in the next.
    running = set(rng.sample(range(first_xid, first_xid + 100), 8))
    taken = []
    for at in (30, 31, 60, 60, 90):
        ended = [xid for xid in sorted(running) if xid < first_xid + at and rng.random() < 0.4]
        running -= set(ended)
        xmax = first_xid + at
        taken.append(str(Snapshot(xmax, frozenset(xid for xid in running if xid < xmax))))
    for group in GROUPS:
        for tenant in TENANTS:
            bucket, top = bucket_of(tenant_hash(tenant)), rng.randrange(1, 5)
            await connection.execute(
                "update outbox.bucket set lo = %s, last_seq = %s, token = 5, expires_at = '2020-01-01'"
                " where group_name = %s and bucket = %s",
                (taken[top], max(map(int, map(str, seqs.values()))), group, bucket),
            )
            if rng.random() < 0.5:
                low, high = sorted(rng.sample(range(5), 2))
                lo = "1:1:" if group == "past" else taken[low]
                await connection.execute(
                    "insert into outbox.stream values (%s, 0, %s, %s, %s, %s, %s, %s, %s)",
                    (group, tenant, tenant_hash(tenant), bucket, lo, taken[min(high, top)], rng.randrange(150), 200),
                )
    await connection.execute("update outbox.bucket set lo = %s where last_seq = 0", (taken[0],))


@pytest.mark.parametrize("seed", range(6))
async def test_every_group_has_yet_to_be_sent_what_it_had_and_nothing_else(connection: Connection, seed: int) -> None:
    """ThreeDotsLabs/watermill#576: in a restored dump the same transaction numbers mean other transactions.

    Those of the dump lie below, around and above what this cluster has given out.
    """
    here = int(str(await value(connection, "select pg_current_xact_id()::text")))
    first_xid = (max(10, here - 300), here - 60, here + 40_000_000_000)[seed % 3]
    await a_log_of_another_cluster(connection, first_xid=first_xid, rng=random.Random(seed))
    await come_from_elsewhere(connection)
    waiting = await unpublished(connection, _UNPUBLISHED)
    written_since = {await emit(connection, tenant) for tenant in TENANTS}
    waiting |= {(group, event_id) for group in GROUPS for event_id in written_since}
    counts = {group: sum(one == group for one, _ in waiting) for group in sorted(GROUPS)}
    before = await preview(connection)
    assert before.difference is not None
    assert before.waiting == counts

    done = await rebase(connection, actor="ops")

    assert done is not None
    assert done.waiting == counts
    assert await unpublished(connection) == waiting
    assert (await preview(connection)).difference is None
    assert await rebase(connection, actor="ops") is None
    assert await value(connection, "select count(*) from outbox.audit where action = 'rebase'") == 1
    assert await value(connection, "select count(*) from outbox.bucket where token <> 0 or expires_at > now()") == 0
    after = {await emit(connection, tenant) for tenant in TENANTS}
    assert await unpublished(connection) == waiting | {(group, event_id) for group in GROUPS for event_id in after}


async def test_what_began_before_and_commits_after_is_yet_to_be_sent(connection: Connection, other: Connection) -> None:
    """A transaction that has its number already, of a business row, and writes its event when all is done."""
    await come_from_elsewhere(connection)
    await other.execute("select pg_current_xact_id()")
    for _ in range(20):
        await emit(connection, "acme")
    assert await rebase(connection, actor="ops") is not None
    late = await emit(other, "acme")
    await other.commit()
    assert ("default", late) in await unpublished(connection)


async def test_a_new_cluster_need_not_have_had_as_many_transactions_as_there_are_positions(
    connection: Connection,
) -> None:
    await connection.execute(
        """insert into outbox.stream
        select 'default', 0, 't' || n, n, n % 64, format('%1$s:%1$s:', n + 7e12)::pg_snapshot,
            '8000000000000:8000000000000:', 0, 9
        from generate_series(1, 3000) n"""
    )
    await come_from_elsewhere(connection)
    done = await rebase(connection, actor="ops")
    assert done is not None
    assert done.streams == 3000


async def test_events_go_on_counting_where_a_dump_came_without_its_sequences(connection: Connection) -> None:
    restored = [await emit(connection, tenant) for tenant in TENANTS]
    await connection.execute("update outbox.bucket set lo = pg_current_snapshot(), last_seq = default, token = 70")
    await come_from_elsewhere(connection)
    await connection.execute("alter sequence outbox.event_seq restart; alter sequence outbox.token restart")
    await connection.execute("select nextval('outbox.event_seq')")  # by a transaction that rolled back
    assert await rebase(connection, actor="ops") is not None
    after = await emit(connection, TENANTS[0])
    assert await value(connection, "select nextval('outbox.token')") == 71
    # The first may have been written here, for all that its number says: once more is better than never.
    assert await unpublished(connection) == {("default", restored[0]), ("default", after)}


async def test_a_crash_in_the_middle_leaves_the_old_state_and_it_can_be_repeated(
    connection: Connection, other: Connection, migrated_database: str
) -> None:
    await a_log_of_another_cluster(connection, first_xid=9_000_000_000, rng=random.Random(1))
    await come_from_elsewhere(connection)
    before, waiting = await state(connection), await unpublished(connection, _UNPUBLISHED)
    await other.execute("lock table outbox.audit")  # all but this is done by then
    async with await connect(migrated_database, application_name="rebase") as doomed:
        rebasing = asyncio.create_task(rebase(doomed, actor="ops"))

        async def at_its_end() -> object:
            return await value(connection, _WAITING_FOR_AUDIT)

        pid = await until(at_its_end, what="the rebase to be at its end")
        await connection.execute("select pg_terminate_backend(%s)", (pid,))
        with pytest.raises(TransientError):
            await rebasing
    await other.rollback()
    assert await state(connection) == before
    assert await rebase(connection, actor="ops") is not None
    assert await unpublished(connection) == waiting


async def test_a_writer_and_a_live_lease_are_waited_for_in_one_sentence_each(
    connection: Connection, other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox_admin.rebase._LOCK_S", 1)
    await come_from_elsewhere(connection)
    await emit(other, "acme")
    before = await state(connection)
    with pytest.raises(TransientError, match="want nobody to write to it, got a transaction, perhaps a prepared one"):
        await rebase(connection, actor="ops")
    await other.execute("prepare transaction 'rebase_test'")
    with pytest.raises(TransientError, match="want nobody to write to it"):
        await rebase(connection, actor="ops")
    await connection.execute("rollback prepared 'rebase_test'")
    await connection.execute(
        "update outbox.bucket set expires_at = clock_timestamp() + interval '9 s' where bucket in (4, 5)"
    )
    with pytest.raises(TransientError, match=r"want no relay at work, got 2 buckets held for another \d s"):
        await rebase(connection, actor="ops")
    await connection.execute("update outbox.bucket set expires_at = '-infinity'")
    assert await state(connection) == before
    assert await rebase(connection, actor="ops") is not None


async def test_no_group_is_added_beside_positions_of_elsewhere(connection: Connection) -> None:
    await come_from_elsewhere(connection)
    with pytest.raises(WrongDatabase, match=r"group audit: want the database that .* run 'outbox rebase'"):
        await add_group(connection, "audit")
    await rebase(connection, actor="ops")
    await add_group(connection, "audit")
