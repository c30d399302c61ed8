"""A moment in the past, as a person types it."""

from datetime import datetime
from typing import Final

import typer

OLDEST: Final = "oldest"


def moment(option: str, text: str) -> datetime | None:
    """Return the time in *text*, or None where it says ``oldest``. Raises BadParameter naming *option*."""
    if text == OLDEST:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise typer.BadParameter(
            f"{option}: want a time with its offset, as 2026-11-29T12:00:00Z, or '{OLDEST}', got {text[:80]!r}"
        )
    return time
