"""Buckets on their way to another relay: what is read, published, settled and stored of them until they are gone."""

import math

from outbox.event import Tier
from relay.decide.backlog import Cohort
from relay.decide.departure import Departure
from relay.decide.holdings import Holdings
from relay.decide.pieces import Part, Sent, Stream
from tests.unit.relay.rows import row

MEMBERS = {1: ("audit", "default"), 2: ("audit", "default")}


def part(tenant: str, bucket: int, *seqs: int) -> Part:
    rows = [row(seq, tenant=tenant) for seq in seqs]
    return Part(
        tier=Tier.STANDARD, tenant=tenant, tenant_hash=1, bucket=bucket, after=seqs[0] - 1, z=seqs[-1], rows=rows
    )


def holdings() -> Holdings:
    """Tenants ``one`` and ``two`` have three events each, read up to ``b``, in the buckets of their names."""
    held = Holdings()
    held.backlog.cohorts = [Cohort("b", dict(MEMBERS))]
    for stream in held.backlog.add("a", "b", [part("one", 1, 1, 3, 5), part("two", 2, 2, 4, 6)], MEMBERS):
        held.offer(stream)
    return held


def stream_of(held: Holdings, group: str, tenant: str) -> Stream:
    return held.backlog.streams[group, Tier.STANDARD, tenant]


def publish(held: Holdings, stream: Stream, count: int) -> list[Sent]:
    taken = stream.take(rows_max=count, bytes_max=1 << 30)
    held.backlog.published(stream, len(taken))
    held.flight.launch(taken, 0.0)
    return taken


def settle(held: Holdings, sent: Sent) -> None:
    assert held.flight.land(sent.tag, 0.0) is sent
    sent.is_settled = True
    sent.stream.outstanding -= 1
    held.backlog.streams[sent.stream.lane.group, Tier.STANDARD, sent.stream.lane.tenant].pieces[0].settle()


def test_the_groups_of_a_bucket_leave_together_and_the_rest_is_read_on() -> None:
    held = holdings()
    departure = Departure(held)
    assert departure.begin(2, leaves_by=9.0) == 2
    assert departure.places == {("audit", 2), ("default", 2)}
    staying, leaving = held.backlog.cohorts
    assert (staying.members, staying.is_busy) == ({1: ("audit", "default")}, False)
    assert (leaving.members, leaving.base, leaving.is_busy) == ({2: ("audit", "default")}, "b", True)
    held.backlog.merge_cohorts()
    assert len(held.backlog.cohorts) == 2


def test_one_group_of_a_bucket_can_leave_without_the_other() -> None:
    held = holdings()
    assert Departure(held).begin(1, leaves_by=9.0) == 1
    assert held.backlog.cohorts[0].members == {1: ("audit", "default"), 2: ("audit",)}
    assert held.backlog.cohorts[1].members == {2: ("default",)}


def test_buckets_whose_window_is_being_read_stay_for_now() -> None:
    held = holdings()
    held.backlog.cohorts[0].is_busy = True
    departure = Departure(held)
    assert departure.begin(2, leaves_by=9.0) == 0
    assert departure.due_at() == math.inf


def test_what_leaves_gets_no_turn_and_goes_once_all_that_was_published_of_it_is_settled() -> None:
    held = holdings()
    leaving = stream_of(held, "default", "two")
    sent = publish(held, leaving, 2)
    departure = Departure(held)
    departure.begin(2, leaves_by=9.0)
    assert departure.due_at() == 9.0
    held.turns.clear()
    held.offer(leaving)
    held.offer(stream_of(held, "default", "one"))
    assert held.turns.take() is stream_of(held, "default", "one")
    assert held.turns.take() is None
    for one in sent:
        settle(held, one)
    assert departure.due_at() == -math.inf


def test_what_is_unpublished_is_stored_where_it_stands_and_forgotten() -> None:
    held = holdings()
    leaving = stream_of(held, "default", "two")
    for one in publish(held, leaving, 2):
        settle(held, one)
    departure = Departure(held)
    departure.begin(2, leaves_by=9.0)
    departure.cut()
    positions = held.backlog.positions(retries=0)
    stored = {(one.lane.group, one.lane.tenant): one.after for one in positions.streams}
    assert stored["default", "two"] == 4
    assert ("default", 2, "b") in positions.bases
    held.backlog.persisted(positions)
    departure.end()
    assert {key[2] for key in held.backlog.streams} == {"one"}
    assert [cohort.members for cohort in held.backlog.cohorts] == [{1: ("audit", "default")}]
    assert held.backlog.positions(retries=0).caught_up == []
    assert not departure.places
    assert not leaving.has_more


def test_what_is_unsettled_when_the_time_is_up_is_neither_settled_nor_sent_again_nor_takes_up_room() -> None:
    held = holdings()
    leaving, staying = stream_of(held, "default", "two"), stream_of(held, "default", "one")
    first, second = publish(held, leaving, 2)
    publish(held, staying, 1)
    settle(held, second)
    departure = Departure(held)
    departure.begin(2, leaves_by=9.0)
    streams, gone = departure.cut()
    assert leaving in streams
    assert staying not in streams
    assert gone == [first]
    assert held.flight.land(first.tag, 1.0) is None
    assert [sent.stream for sent in held.flight.unsettled()] == [staying]
    positions = held.backlog.positions(retries=0)
    assert [one.after for one in positions.streams if one.lane == leaving.lane] == [1]
    held.backlog.persisted(positions)
    departure.end()
    assert held.backlog.unpersisted == 1


def test_one_departure_at_a_time() -> None:
    held = holdings()
    departure = Departure(held)
    departure.begin(1, leaves_by=9.0)
    assert departure.begin(1, leaves_by=9.0) == 0
    assert departure.places == {("default", 2)}
