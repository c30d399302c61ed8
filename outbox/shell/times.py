"""A moment, as a person types it."""

from datetime import datetime

import typer


def parse_moment(option: str, text: str, *, otherwise: str = "") -> datetime:
    """Return the time in *text*, which has an offset. Raises BadParameter naming *option*, and what else it may be."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise typer.BadParameter(
            f"{option}: want a time with its offset, as 2026-11-29T12:00:00Z{otherwise}, got {text[:80]!r}"
        )
    return time
