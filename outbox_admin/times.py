"""A moment in the past, as a person types it."""

from datetime import datetime
from typing import Final

from outbox.shell.times import parse_moment

OLDEST: Final = "oldest"


def moment(option: str, text: str) -> datetime | None:
    """Return the time in *text*, or None where it says ``oldest``. Raises BadParameter naming *option*."""
    return None if text == OLDEST else parse_moment(option, text, otherwise=f", or '{OLDEST}'")
