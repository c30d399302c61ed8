"""Dead letters as tables that people read."""

from collections.abc import Sequence

from rich.table import Table

from consumer.store.dead_list import DeadGroup, Listed, Outcome
from outbox.shell.console import wide_table
from outbox.shell.logs import harmless
from outbox.shell.words import in_utc

_TYPES_SHOWN = 3


def letters(found: Sequence[Listed]) -> Table:
    """One row each: whose, what and why, and how its replay went."""
    has_fate = any(letter.summary.resolution is not None for letter in found)
    made = wide_table(
        *("id", "dead at", "tenant", "tier", "type", "category", "attempts", "fingerprint", "owner"),
        *(("became",) if has_fate else ()),
        "why",
        right={"id", "attempts"},
    )
    for letter in found:
        one = letter.summary
        made.add_row(
            str(one.id),
            in_utc(one.dead_at),
            *(harmless(text) for text in (one.tenant, one.tier.label, one.type, one.category.value)),
            str(one.attempts),
            harmless(one.fingerprint),
            harmless(letter.owner or "-"),
            *((harmless(_fate(letter)),) if has_fate else ()),
            harmless(one.message),
        )
    return made


def groups(found: Sequence[DeadGroup]) -> Table:
    """One row for all that failed alike."""
    made = wide_table(
        *("fingerprint", "letters", "tenants", "since", "latest", "category", "types", "owner", "why"),
        right={"letters", "tenants"},
    )
    for one in found:
        more = f" and {len(one.types) - _TYPES_SHOWN} more" if len(one.types) > _TYPES_SHOWN else ""
        made.add_row(
            harmless(one.fingerprint),
            f"{one.letters:,}",
            f"{one.tenants:,}",
            *(in_utc(time) for time in (one.first_at, one.last_at)),
            one.category.value,
            harmless(", ".join(one.types[:_TYPES_SHOWN]) + more),
            harmless(one.owner or "-"),
            harmless(one.message),
        )
    return made


def _fate(letter: Listed) -> str:
    """What was decided about it, by whom, and how that went."""
    one = letter.summary
    if one.resolution is None:
        return "open"
    by = f" by {one.resolved_by}" if one.resolved_by else ""
    match letter.outcome:
        case None:
            return f"{one.resolution}{by}"
        case Outcome.DEAD_AGAIN:
            return f"{one.resolution}{by}: dead again as {letter.dead_again}"
        case outcome:
            return f"{one.resolution}{by}: {outcome.value}"
