"""Numbers and times as people read them."""

from datetime import UTC, datetime


def counted(number: int, noun: str) -> str:
    """*number* of *noun*, in the plural if it is not one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"


def in_utc(time: datetime) -> str:
    """*time* to the second, in UTC as in the log, whatever zone the database is in."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
