"""How one tenant does, as people read it: what keeps its events first, then where they are."""

from collections.abc import Sequence

from rich.console import Console

from outbox.event import Tier
from outbox.shell.console import wide_table
from outbox.shell.logs import harmless
from outbox.shell.words import in_utc
from outbox_admin.tenant_status import Count, TenantStatus, Where


def show(status: TenantStatus, console: Console) -> None:
    """Print *status*."""
    for group, weight in status.weights.items():
        console.print(f"group {group}: weight {weight}", highlight=False)
    for group, pauses in status.pauses.items():
        for pause in pauses:
            until = "somebody resumes it" if pause.until is None else in_utc(pause.until)
            why = f": {pause.reason}" if pause.reason else ""
            text = f"group {group}: {pause.scope} is paused until {until}, by {pause.actor}{why}"
            console.print(harmless(text), style="yellow", highlight=False, markup=False)
    if not status.counts:
        where = "" if status.are_queues_known else ", as far as is known without the broker"
        console.print(f"nothing of tenant {harmless(status.tenant)} is waiting, running or dead{where}", markup=False)
        return
    rows: dict[tuple[str, Tier, str | None], list[Count]] = {}
    for one in status.counts:
        rows.setdefault((one.group, one.tier, one.type), []).append(one)
    shown = [where for where in Where if any(one.where is where for one in status.counts)]
    made = wide_table("group", "tier", "type", *shown, "since", right={*shown})
    for (group, tier, event_type), counts in sorted(rows.items(), key=lambda item: (*item[0][:2], item[0][2] or "")):
        made.add_row(group, tier.label, harmless(event_type or "any"), *_numbers(counts, shown), _since(counts))
    console.print(made)


def _numbers(counts: Sequence[Count], shown: Sequence[Where]) -> list[str]:
    return [f"{sum(one.events for one in counts if one.where is where):,}" for where in shown]


def _since(counts: Sequence[Count]) -> str:
    return min((in_utc(one.since) for one in counts if one.since is not None), default="-")
