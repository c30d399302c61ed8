"""Numbers and times as people read them."""

from datetime import datetime, timedelta, timezone

from outbox.shell.words import counted, in_utc


def test_one_is_one_and_any_other_number_is_many() -> None:
    assert [counted(number, "event") for number in (0, 1, 1200)] == ["0 events", "1 event", "1,200 events"]
    assert counted(2, "process") == "2 processes"


def test_a_time_is_told_in_utc_whatever_zone_the_database_is_in() -> None:
    berlin = timezone(timedelta(hours=1), "CET")
    assert in_utc(datetime(2026, 11, 30, 0, 30, tzinfo=berlin)) == "2026-11-29 23:30:00Z"
