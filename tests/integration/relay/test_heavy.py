"""Windows that a few tenants make too large are brought along without these, and miss nothing of anybody's."""

import random
from collections.abc import Sequence

import psycopg

from outbox.event import Tier
from outbox.naming import Lane, bucket_of, tenant_hash
from relay.decide.pieces import Part, Piece, Stream
from relay.log import heavy, ranges, ringlog, store
from relay.log.ringlog import Bounds
from tests.integration.relay.running import App, emit
from tests.integration.relay.test_plans import check
from tests.support.plans import plan_of

EVERY = list(range(64))
BOUNDS = Bounds(rows=40, bytes=1 << 24, seconds=10.0)
PLENTY = Bounds(rows=10_000, bytes=1 << 30, seconds=10.0)
TENANTS = ["a", "noisy", "noisy ", "noisy2", "z", "\u00e9t\u00e9", "\U0001f600", "\ue000"]


async def connect(url: str) -> store.Connection:
    return await store.connect(url, store.FIXED_PLANS, connect_s=5.0, statement_s=10.0)


async def rows_of(connection: store.Connection, lo: str, hi: str, parts: Sequence[Part]) -> list[tuple[int, str]]:
    """Everything in *parts*, ranges read to their ends, by number and tenant; each row as often as it is there."""
    found: list[tuple[int, str]] = []
    for part in parts:
        rows = part.rows
        if rows is None:
            lane = Lane(group="default", tier=part.tier, tenant=part.tenant)
            stream = Stream(lane=lane, tenant_hash=part.tenant_hash, bucket=part.bucket)
            piece = Piece(lo=lo, hi=hi, after=part.after, z=part.z)
            rows = await ranges.rows_of(connection, stream, piece, part.after, PLENTY)
            assert rows[0].seq == part.after + 1
            assert rows[-1].seq == part.z
        assert {(row.event.tier, row.event.tenant) for row in rows} == {(part.tier, part.tenant)}
        found += [(row.seq, row.event.tenant) for row in rows]
    return sorted(found)


async def test_ranges_and_rows_are_together_what_a_survey_finds_whoever_wrote_when(url: str) -> None:
    """Transactions that overlap the window's ends, of tenants whose names are next to each other, in every tier."""
    rng = random.Random(5)
    connection = await connect(url)
    is_set_aside = 0
    for _ in range(12):
        apps = [psycopg.connect(url) for _ in range(6)]
        for app in apps[:3]:  # running in lo
            _write(rng, app)
        lo = await ringlog.snapshot(connection, within_s=5.0)
        for app in apps:
            _write(rng, app)
        for app in rng.sample(apps, 4):
            app.commit()
        hi = await ringlog.snapshot(connection, within_s=5.0)
        for app in apps:
            app.commit()
            app.close()
        window = await ringlog.window(connection, lo, hi, EVERY, BOUNDS)
        if window.parts is not None:
            continue
        around = await heavy.parts_around(connection, lo, hi, EVERY, window.heavy, BOUNDS)
        survey = await ringlog.survey(connection, lo, hi, EVERY, within_s=5.0)
        if around is not None:
            is_set_aside += 1
            assert await rows_of(connection, lo, hi, around) == await rows_of(connection, lo, hi, survey)
    assert is_set_aside > 5
    await store.close(connection)


async def test_what_too_many_transactions_wrote_is_left_to_a_survey(url: str, app: App) -> None:
    connection = await connect(url)
    lo = await ringlog.snapshot(connection, within_s=5.0)
    for _ in range(201):
        emit(app, "noisy")
        app.commit()
    window = await ringlog.window(connection, lo, None, EVERY, BOUNDS)
    assert window.parts is None
    assert window.heavy == ["noisy"]
    assert await heavy.parts_around(connection, lo, window.hi, EVERY, window.heavy, BOUNDS) is None
    await store.close(connection)


async def test_a_large_transaction_is_jumped_over_by_plans_that_were_made_when_there_was_none(
    url: str, app: App
) -> None:
    """The time it takes to go around a tenant's rows must not grow with them."""
    connection = await connect(url)
    await heavy.make_plans(connection, within_s=5.0)
    lo = await ringlog.snapshot(connection, within_s=5.0)
    emit(app, "quiet", count=3)
    commit_many(app, "noisy", 20_000)
    window = await ringlog.window(connection, lo, None, EVERY, BOUNDS)
    around = await heavy.parts_around(connection, lo, window.hi, EVERY, window.heavy, BOUNDS)
    assert around is not None
    assert [(part.tenant, part.rows is None) for part in around] == [("quiet", False), ("noisy", True)]
    xid = lo.split(":")[1]
    buckets = "'{" + ",".join(map(str, EVERY)) + "}'"
    xids = f"'{{{xid}}}'"
    found = await plan_of(connection, "WITH RECURSIVE s", f"'{lo}', '{window.hi}', 201::smallint")
    spans = await plan_of(connection, "min(b.seq)", f"'{{noisy}}', {xids}")
    for plan in (found, spans):
        for node in plan:
            if node.get("Relation Name", "").startswith("event_"):
                assert node["Index Name"].endswith("_xid"), node
                assert node["Actual Rows"] * node["Actual Loops"] + node.get("Rows Removed by Filter", 0) <= 3, node
    arguments = (
        f"'{window.hi}', {xids}, '{{\"\"}}', '{{noisy}}', {buckets}, 'noisy', 40::smallint, {1 << 24}::integer,"
        " false, null, null"
    )
    rest = await plan_of(connection, "AS g (a, b)", arguments)
    check([node for node in rest if node.get("Index Name", "").endswith("_xid")], index="_xid", rows_max=3)
    await store.close(connection)


def _write(rng: random.Random, app: App) -> None:
    for _ in range(rng.randrange(4)):
        emit(app, rng.choice(TENANTS), tier=rng.choice(list(Tier)), count=rng.choice([1, 2, 30]))


def commit_many(app: App, tenant: str, count: int) -> None:
    """Commit *count* events of one tenant at once."""
    hashed = tenant_hash(tenant)
    app.execute(
        "insert into outbox.event (id, bucket, tier, tenant, tenant_hash, type, data_version, source, content_type,"
        " payload) select gen_random_uuid(), %s, 1, %s, %s, 'order.placed', 1, 'shop', 'application/json', '{}'"
        " from generate_series(1, %s)",
        (bucket_of(hashed), tenant, hashed, count),
    )
    app.commit()
