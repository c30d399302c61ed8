"""A relay's status as people read it: what is wrong first, then tables."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from outbox.event import Tier
from outbox.shell.console import table
from outbox.shell.logs import harmless
from outbox.shell.words import in_utc
from relay.log.replay_requests import Request
from relay.status import Status, problems


def as_json(status: Status) -> str:
    """*status* as one JSON object: tiers by name, times as ISO 8601."""
    return json.dumps(_plain({**asdict(status), "problems": problems(status)}))


def render(status: Status) -> RenderableType:
    """*status* as something rich prints."""
    return Group(*_headline(status), *_tables(status))


def _headline(status: Status) -> Iterable[RenderableType]:
    buckets = sum(relay.buckets for relay in status.relays)
    yield Text(f"relays: {len(status.relays)}, buckets held: {buckets}, free: {status.free_buckets}", style="bold")
    found = problems(status)
    if not found:
        yield Text("nothing is stuck", style="green")
    for problem in found:
        yield Text(f"! {harmless(problem)}", style="yellow")


def _tables(status: Status) -> Iterable[RenderableType]:
    lag = table(
        *("group", "tier", "events", "oldest, s", "tenants", "behind alone"),
        title="not published yet",
        right={"events", "oldest, s", "tenants", "behind alone"},
    )
    for group in status.groups:
        by_tier = {one.tier: one for one in group.lag}
        for tier in Tier:
            one = by_tier.get(tier)
            cells = (
                ("0", "0.0", "0", "0")
                if one is None
                else (str(one.events), f"{one.oldest_s:.1f}", str(one.tenants), str(one.streams))
            )
            lag.add_row(group.group, tier.label, *cells)
    relays = table(
        *("token", "buckets", "fair share", "broker", "expires in, s"),
        title="relays",
        right={"token", "buckets", "fair share", "expires in, s"},
    )
    for relay in status.relays:
        broker = "reached" if relay.is_able else "not reached"
        relays.add_row(str(relay.token), str(relay.buckets), str(relay.share), broker, f"{relay.expires_in_s:.1f}")
    deferred = table(
        *("group", "state", "category", "events", "tenants", "since", "next try"),
        title="deferred",
        right={"events", "tenants"},
    )
    for group in status.groups:
        for row in group.deferred:
            next_try = "-" if row.state == "dead" else in_utc(row.next_due_at)
            since = in_utc(row.since)
            deferred.add_row(group.group, row.state, row.category, str(row.events), str(row.tenants), since, next_try)
    for made in (lag, relays, deferred, _replays(status.replays)):
        if made.row_count:
            yield from (Text(""), made)
    yield Text("")
    next_at = "-" if status.next_scheduled_at is None else in_utc(status.next_scheduled_at)
    yield Text(f"scheduled: {status.scheduled}, of which due: {status.scheduled_due}, next at: {next_at}")
    size_mb = sum(slot.size_bytes for slot in status.slots) / 1_000_000
    oldest_days = max((slot.oldest_s for slot in status.slots), default=0.0) / 86_400
    yield Text(f"log: {size_mb:.1f} MB in {len(status.slots)} slots, the oldest event of {oldest_days:.1f} days ago")


def _replays(running: Sequence[Request]) -> Table:
    numbers = ("number", "published", "of", "a second", "tenants held")
    found = table(*numbers[:1], "group", *numbers[1:], "problem", title="replays", right=numbers)
    for one in running:
        counts = (str(one.published), str(one.events), str(one.per_s), str(one.held_tenants))
        found.add_row(str(one.id), one.group, *counts, harmless(one.problem or "-"))
    return found


def _plain(value: object) -> object:
    match value:
        case Tier():
            return value.label
        case datetime():
            return value.isoformat()
        case dict():
            return {name: _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value
