from outbox.event import Tier
from outbox.naming import Lane
from relay.decide.flight import AllWell, BrokerSilent, Flight, LanesSilent
from relay.decide.pieces import Piece, Sent, Stream
from tests.unit.relay.rows import rows

CONFIRM_S = 10.0


def sents_of(tenant: str, count: int) -> list[Sent]:
    stream = Stream(lane=Lane(group="default", tier=Tier.BULK, tenant=tenant), tenant_hash=1, bucket=1)
    stream.add(Piece(lo="a", hi="b", after=0, z=count, rows=rows(count)))
    return stream.take(rows_max=count, bytes_max=1 << 30)


def test_what_is_sent_again_on_a_new_connection_keeps_its_publishing_order_also_if_that_fails_half_way() -> None:
    flight = Flight()
    sents = sents_of("acme", 5)
    flight.launch(sents, 0.0)
    flight.land(sents[2].tag, 1.0)
    again = flight.unsettled()
    flight.launch(again, 2.0)
    # The connection is lost before any of it was written: the order must be the same once more.
    assert [sent.row.seq for sent in flight.unsettled()] == [1, 2, 4, 5]


def test_a_late_confirm_of_an_older_publish_settles_nothing() -> None:
    flight = Flight()
    (sent,) = sents_of("acme", 1)
    flight.launch([sent], 0.0)
    former = sent.tag
    flight.launch([sent], 1.0)
    assert flight.land(former, 2.0) is None
    assert flight.land(sent.tag, 2.0) is sent


def test_one_lane_that_keeps_silent_while_others_are_heard_is_the_one_at_fault() -> None:
    flight = Flight()
    silent, heard = sents_of("silent", 2), sents_of("heard", 2)
    flight.launch([*silent, *heard], 0.0)
    flight.land(heard[0].tag, 5.0)
    assert flight.verdict(9.0, confirm_s=CONFIRM_S) == AllWell()
    flight.land(heard[1].tag, 9.0)
    assert flight.verdict(11.0, confirm_s=CONFIRM_S) == LanesSilent(streams=[silent[0].stream])


def test_silence_of_all_is_the_connections_fault() -> None:
    flight = Flight()
    flight.launch([*sents_of("one", 1), *sents_of("other", 1)], 0.0)
    assert flight.verdict(9.0, confirm_s=CONFIRM_S) == AllWell()
    assert flight.verdict(10.5, confirm_s=CONFIRM_S) == BrokerSilent()


def test_a_lane_known_to_be_faulty_does_not_condemn_the_connection() -> None:
    flight = Flight()
    (sent,) = sents_of("silent", 1)
    flight.launch([sent], 0.0)
    sent.stream.is_faulty = True
    assert flight.verdict(100.0, confirm_s=CONFIRM_S) == AllWell()


def test_time_that_the_broker_spent_blocked_does_not_count_as_silence() -> None:
    flight = Flight()
    flight.launch(sents_of("acme", 1), 0.0)
    flight.resumed(60.0)
    assert flight.verdict(65.0, confirm_s=CONFIRM_S) == AllWell()
    assert flight.verdict(71.0, confirm_s=CONFIRM_S) == BrokerSilent()


def test_a_lane_that_failed_before_has_no_connection_replaced_until_it_is_proven() -> None:
    flight = Flight()
    sents = [*sents_of("one", 1), *sents_of("other", 1)]
    flight.launch(sents, 0.0)
    assert flight.verdict(10.5, confirm_s=CONFIRM_S) == BrokerSilent()
    for sent in sents:
        sent.stream.strikes = 1
    assert flight.verdict(10.5, confirm_s=CONFIRM_S) == LanesSilent(streams=[sent.stream for sent in sents])
    flight.prove(sents[0].stream.lane)
    assert flight.verdict(10.5, confirm_s=CONFIRM_S) == BrokerSilent()
    flight.reconnected()
    assert flight.verdict(10.5, confirm_s=CONFIRM_S) == LanesSilent(streams=[sent.stream for sent in sents])


def test_a_lane_is_at_fault_when_others_were_heard_that_were_sent_later_however_long_ago() -> None:
    flight = Flight()
    before, silent, after = (sents_of(name, 1) for name in ("before", "silent", "after"))
    flight.launch([*before, *silent, *after], 0.0)
    flight.land(before[0].tag, 0.1)
    assert flight.verdict(11.0, confirm_s=CONFIRM_S) == BrokerSilent()
    flight.land(after[0].tag, 0.1)
    assert flight.verdict(11.0, confirm_s=CONFIRM_S) == LanesSilent(streams=[silent[0].stream])


def test_what_was_sent_again_keeps_its_place_before_what_has_yet_to_be() -> None:
    flight = Flight()
    sents = sents_of("acme", 3)
    flight.launch(sents, 0.0)
    flight.launch(sents[:1], 1.0)
    assert flight.unsettled_of(sents[0].stream) == sents
