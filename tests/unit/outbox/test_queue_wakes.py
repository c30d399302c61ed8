"""What is told of queues comes through as it was said, in notifications that PostgreSQL takes."""

from outbox.queues.wakes import Wake, WakeKind, read, written


def test_what_is_written_is_read() -> None:
    wakes = [Wake(queue_id=number, kind=kind) for number in range(1, 2000) for kind in WakeKind]
    payloads = list(written([*wakes, *wakes]))
    assert [wake for payload in payloads for wake in read(payload)] == wakes
    assert all(0 < len(payload.encode()) < 8000 for payload in payloads)


def test_what_others_say_on_the_channel_is_passed_over() -> None:
    assert list(read("hello 7 b b12 -3 g٣ 9x g4")) == [
        Wake(queue_id=7),
        Wake(queue_id=12, kind=WakeKind.BACK),
        Wake(queue_id=4, kind=WakeKind.GONE),
    ]
