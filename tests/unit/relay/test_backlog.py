from outbox.event import Tier
from relay.decide.backlog import Backlog, Cohort
from relay.decide.pieces import Part, Sent
from tests.unit.relay.rows import row, settle

BOTH = {1: ("audit", "default"), 2: ("default",)}


def part(tenant: str, bucket: int, *seqs: int, tier: Tier = Tier.STANDARD) -> Part:
    rows = [row(seq, tenant=tenant, tier=tier) for seq in seqs]
    return Part(tier=tier, tenant=tenant, tenant_hash=1, bucket=bucket, after=seqs[0] - 1, z=seqs[-1], rows=rows)


def backlog_at(base: str) -> Backlog:
    return Backlog(cohorts=[Cohort(base, dict(BOTH))])


def publish(backlog: Backlog, group: str, tenant: str) -> list[Sent]:
    stream = backlog.streams[group, Tier.STANDARD, tenant]
    taken = stream.take(rows_max=100, bytes_max=1 << 30)
    backlog.published(stream, len(taken))
    return taken


def test_a_row_read_once_goes_to_every_group_whose_bucket_is_ours() -> None:
    backlog = backlog_at("a")
    grown = backlog.add("a", "b", [part("acme", 1, 5), part("zeta", 2, 6)], BOTH)
    assert [(stream.lane.group, stream.lane.tenant) for stream in grown] == [
        ("audit", "acme"),
        ("default", "acme"),
        ("default", "zeta"),
    ]


def test_a_tier_is_a_lane_of_its_own() -> None:
    backlog = backlog_at("a")
    parts = [part("acme", 2, 1, tier=Tier.BULK), part("acme", 2, 2, tier=Tier.INTERACTIVE)]
    grown = backlog.add("a", "b", parts, BOTH)
    assert [stream.lane.tier for stream in grown] == [Tier.BULK, Tier.INTERACTIVE]


def test_a_base_moves_for_all_and_only_who_is_behind_gets_a_stream() -> None:
    backlog = backlog_at("a")
    backlog.add("a", "b", [part("acme", 1, 5, 6), part("zeta", 2, 7)], BOTH)
    backlog.cohorts[0].base = "b"
    settle(*publish(backlog, "default", "zeta"), *publish(backlog, "audit", "acme"))
    publish(backlog, "default", "acme")
    positions = backlog.positions(retries=0)
    assert sorted(positions.bases) == [("audit", 1, "b"), ("default", 1, "b"), ("default", 2, "b")]
    (stream,) = positions.streams
    assert (stream.lane.group, stream.lane.tenant, stream.lo, stream.hi, stream.after, stream.z) == (
        ("default", "acme", "a", "b", 4, 6)
    )
    backlog.persisted(positions)
    assert backlog.unpersisted == 2
    again = backlog.positions(retries=0)
    assert (again.bases, again.streams, again.caught_up) == ([], [], [])


def test_a_stream_that_caught_up_is_deleted_and_its_lane_forgotten() -> None:
    backlog = backlog_at("a")
    backlog.add("a", "b", [part("zeta", 2, 7)], BOTH)
    sents = publish(backlog, "default", "zeta")
    backlog.persisted(backlog.positions(retries=0))
    settle(*sents)
    positions = backlog.positions(retries=0)
    assert positions.caught_up == [("default", Tier.STANDARD, "zeta")]
    backlog.persisted(positions)
    assert backlog.streams == {}
    assert backlog.unpersisted == 0


def test_what_is_published_while_a_persist_is_under_way_stays_unpersisted() -> None:
    backlog = backlog_at("a")
    backlog.add("a", "b", [part("zeta", 2, 7, 8)], BOTH)
    settle(*publish(backlog, "default", "zeta"))
    under_way = backlog.positions(retries=0)
    backlog.add("b", "c", [part("zeta", 2, 9)], BOTH)
    settle(*publish(backlog, "default", "zeta"))
    backlog.persisted(under_way)
    assert backlog.unpersisted == 1


def test_buckets_that_were_taken_later_join_the_others_once_they_stand_at_the_same_base() -> None:
    backlog = backlog_at("b")
    backlog.cohorts.append(Cohort("b", {2: ("audit",), 3: ("default",)}))
    backlog.cohorts.append(Cohort("b", {4: ("default",)}, is_busy=True))
    backlog.merge_cohorts()
    steady, busy = backlog.cohorts
    assert steady.members == {1: ("audit", "default"), 2: ("audit", "default"), 3: ("default",)}
    assert busy.members == {4: ("default",)}


def test_a_lane_with_a_stored_stream_gets_nothing_through_the_window() -> None:
    backlog = backlog_at("a")
    stored = {("default", Tier.STANDARD, "acme")}
    grown = backlog.add("a", "b", [part("acme", 1, 5)], BOTH, without=stored)
    assert [stream.lane.group for stream in grown] == ["audit"]
