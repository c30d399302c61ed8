"""The relay's plans do not depend on what the tables held when they were made."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outbox.event import Tier
from outbox.naming import Lane, bucket_of, tenant_hash
from relay.decide.backlog import Positions
from relay.decide.pieces import Piece, Stream
from relay.log import deferred, positions, ranges, replays, ringlog, store
from relay.log.ringlog import Bounds
from tests.integration.relay.running import App, emit, value
from tests.support.plans import plan_of

BOUNDS = Bounds(rows=1000, bytes=1 << 24, seconds=10.0)
EVERY = list(range(64))


def check(plan: list[dict[str, Any]], *, index: str, rows_max: int) -> None:
    """Events are found by *index* alone, and no scan brings rows that the statement did not ask for."""
    scans = [node for node in plan if node.get("Relation Name", "").startswith("event_")]
    assert scans
    for node in scans:
        assert node["Node Type"] == "Index Scan", node
        assert node["Index Name"].endswith(index), node
        removed = node.get("Rows Removed by Filter", 0)
        assert node["Actual Rows"] * node["Actual Loops"] + removed <= rows_max, node
    assert not {node["Node Type"] for node in plan} & {"Hash Join", "Merge Join", "Gather", "Bitmap Heap Scan"}


@pytest.mark.parametrize("is_filled_first", [False, True])
async def test_plans_made_on_empty_partitions_stay_right_when_these_are_full(
    url: str, app: App, *, is_filled_first: bool
) -> None:
    """A plan for an empty partition reads it from end to end; one is prepared, the ring turns, and it is full."""
    connection = await store.connect(url, store.FIXED_PLANS, connect_s=5.0, statement_s=10.0)
    if is_filled_first:
        _fill(app, 20_000)
    lo = await ringlog.snapshot(connection, within_s=5.0)
    tenant = "tenant-7"
    hashed = tenant_hash(tenant)
    stream = Stream(
        lane=Lane(group="default", tier=Tier.BULK, tenant=tenant), tenant_hash=hashed, bucket=bucket_of(hashed)
    )
    piece = Piece(lo="1:1:", hi=lo, after=0, z=1 << 40, slots=1)
    for _ in range(10):  # beyond the number of runs after which a server may choose a generic plan
        await ringlog.window(connection, lo, None, EVERY, BOUNDS, look_as=ringlog.Look(token=1, relays=1))
        await ranges.rows_of(connection, stream, piece, 0, BOUNDS)
        await ranges.rows_of_all(connection, [(stream, piece)], within_s=5.0)
        await ringlog.survey(connection, lo, lo, EVERY, within_s=5.0)
    if not is_filled_first:
        _fill(app, 20_000)
    app.execute("analyze outbox.event")
    app.commit()
    lo = await ringlog.snapshot(connection, within_s=5.0)
    emit(app, tenant, tier=Tier.BULK, count=10)
    app.commit()
    hi = await ringlog.snapshot(connection, within_s=5.0)

    buckets = "'{" + ",".join(map(str, EVERY)) + "}'"
    window = await plan_of(connection, "is_large", f"'{lo}', '{hi}', {buckets}, 1000, 16777216, true, 1, 1")
    new = [node for node in window if node.get("Index Name", "").endswith("_xid")]
    bodies = [node for node in window if node.get("Index Name", "").endswith("_tenant")]
    check(new, index="_xid", rows_max=10)
    check(bodies, index="_tenant", rows_max=10)
    check(await plan_of(connection, "min(seq) - 1, max(seq)", f"'{hi}', '{lo}', {buckets}"), index="_xid", rows_max=10)
    of_lane = 200 + 10
    arguments = f"{hashed}, 0, {1 << 40}, 2, '{tenant}', '1:1:', '{hi}', 'default', 1000, 16777216"
    check(await plan_of(connection, "so_far", arguments), index="_tenant", rows_max=of_lane)
    slot = value(app, "select outbox.current_slot()")
    of = f"'{{0}}', '{{{slot}}}', '{{default}}', '{{{hashed}}}', '{{2}}', '{{{tenant}}}'"
    arguments = f"{of}, '{{\"1:1:\"}}', '{{\"{hi}\"}}', '{{0}}', '{{{1 << 40}}}'"
    check(await plan_of(connection, "AS w (number, slot", arguments), index="_tenant", rows_max=of_lane)
    await store.close(connection)


async def test_a_replay_reads_no_more_of_a_full_log_than_goes_into_its_chunk(url: str, app: App) -> None:
    connection = await store.connect(url, store.FIXED_PLANS, connect_s=5.0, statement_s=10.0)
    since, until = datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(hours=1)
    first, last = replays.Place(-(2**63), 0), 2**63 - 1
    claim = replays.Claim(
        id=1,
        token=1,
        mark=1,
        group="default",
        from_at=since,
        to_at=until,
        tenant=None,
        type=None,
        per_s=500,
        tries=0,
        after=first,
        last_hash=last,
    )
    bounds = Bounds(rows=50, bytes=1 << 20, seconds=10.0)
    for _ in range(10):
        assert (await replays.read(connection, claim, bounds, scan=2000)).is_last
    _fill(app, 20_000)
    app.execute("update outbox.bucket set lo = pg_current_snapshot()")
    app.execute(
        "insert into outbox.lane (group_name, tier, tenant) select distinct 'default', tier, tenant from outbox.event"
    )
    app.execute("analyze outbox.event")
    app.commit()
    chunk = await replays.read(connection, claim, bounds, scan=2000)
    assert (len(chunk.copies), chunk.is_last) == (50, False)
    arguments = (
        f"'{since}', '{until}', null, null, 'default', {first.tenant_hash}, {first.seq}, {last}, 2000, 50, 1000000"
    )
    check(await plan_of(connection, "w.before", arguments), index="_tenant", rows_max=50)
    await store.close(connection)


async def test_lanes_that_caught_up_are_looked_up_by_key_though_the_server_believes_there_are_few(
    url: str, app: App
) -> None:
    """Analysed while nearly empty, many lanes' positions were compared with as many lanes' names, each with each."""
    count = 1000
    app.autocommit = True
    _fall_behind(app, count)
    app.execute("delete from outbox.stream where tenant <> %s", (str(count),))
    app.execute("vacuum analyze outbox.stream")
    connection = await store.connect(url, store.FIXED_PLANS, connect_s=5.0, statement_s=10.0)
    for lanes in (1, count):
        _fall_behind(app, lanes)
        caught_up = [("default", Tier.STANDARD, str(number)) for number in range(1, lanes + 1)]
        moved = Positions(bases=(), streams=(), caught_up=caught_up, settled=0, settled_of={})
        await positions.persist(connection, 1, moved, positions.Findings(), owned=0, within_s=5.0)
    assert value(app, "select count(*) from outbox.stream") == 0

    _fall_behind(app, count)
    names = ",".join(str(number) for number in range(1, count + 1))
    each = f"'{{{','.join(['default'] * count)}}}', '{{{','.join(['1'] * count)}}}', '{{{names}}}'"
    plan = await plan_of(connection, "DELETE FROM outbox.stream", each)
    assert sum(node.get("Rows Removed by Join Filter", 0) for node in plan) == 0
    found = [node["Actual Rows"] * node["Actual Loops"] for node in plan if node.get("Relation Name") == "stream"]
    assert max(found) == count
    await store.close(connection)


async def test_deferred_events_are_claimed_by_key_though_the_server_believes_there_are_few(url: str, app: App) -> None:
    events = 2000
    app.autocommit = True
    app.execute("update outbox.bucket set token = 1")
    emit(app, count=events)
    _defer(app)
    app.execute("delete from outbox.deferred where id <> (select max(id::text)::uuid from outbox.deferred)")
    app.execute("vacuum analyze outbox.deferred")
    connection = await store.connect(url, store.FIXED_PLANS, connect_s=5.0, statement_s=10.0)
    due = await deferred.due(connection, 1, waiting=(), rows_max=1, within_s=5.0)
    assert len(await deferred.claim(connection, 1, due, within_s=5.0)) == 1
    _defer(app)
    due = await deferred.due(connection, 1, waiting=(), rows_max=100, within_s=5.0)
    each = f"1, '{{{','.join(['default'] * 100)}}}', '{{{','.join(str(one.event_id) for one in due)}}}'"
    plan = await plan_of(connection, "UPDATE outbox.deferred e SET token", each)
    assert sum(node.get("Rows Removed by Join Filter", 0) for node in plan) == 0
    found = [node["Actual Rows"] * node["Actual Loops"] for node in plan if node.get("Relation Name") == "deferred"]
    assert max(found) == 100
    await store.close(connection)


def _defer(app: App) -> None:
    """Have all events of the log deferred, and due."""
    app.execute(
        "insert into outbox.deferred (group_name, state, category, reason, attempts, due_at, id, bucket, tier, tenant,"
        " tenant_hash, type, data_version, source, content_type, payload)"
        " select 'default', 'retry', 'refused', '', 1, clock_timestamp(), id, bucket, tier, tenant,"
        " tenant_hash, type, data_version, source, content_type, payload from outbox.event on conflict do nothing"
    )


def _fall_behind(app: App, lanes: int) -> None:
    app.execute(
        "insert into outbox.stream (group_name, tier, tenant, tenant_hash, bucket, lo, hi, after, z)"
        " select 'default', 1, n, n, 1, '1:1:', '1:1:', 0, 1 from generate_series(1, %s) n on conflict do nothing",
        (lanes,),
    )


def _fill(app: App, events: int) -> None:
    for number in range(100):
        emit(app, f"tenant-{number}", tier=Tier.BULK, count=events // 100)
    app.commit()
