"""What the demo says at the end, and how it knows: by SQL, from the app's rows and the handler's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg import AsyncConnection
from rich.table import Table

# An event counts as published once a position that was stored has passed it.
_PER_TENANT = """
WITH
committed AS (SELECT tenant, count(*) AS n FROM demo.placed_order GROUP BY tenant),
published AS (
    SELECT e.tenant, count(*) AS n
    FROM outbox.event e JOIN outbox.bucket b ON b.bucket = e.bucket AND b.group_name = 'default'
    LEFT JOIN outbox.stream s ON s.group_name = 'default' AND s.tier = e.tier AND s.tenant = e.tenant
    WHERE e.type = 'demo.order.placed' AND e.emitted_at >= %(since)s
        AND pg_visible_in_snapshot(e.xid, coalesce(s.lo, b.lo))
    GROUP BY e.tenant
),
handled AS (
    SELECT s.tenant, count(DISTINCT s.order_id) AS n, count(*) - count(DISTINCT s.order_id) AS doubled,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY s.started_at - e.emitted_at) AS p50,
        percentile_cont(0.99) WITHIN GROUP (ORDER BY s.started_at - e.emitted_at) AS p99
    FROM demo.shipment s JOIN outbox.event e ON e.id = s.event_id GROUP BY s.tenant
),
lost AS (
    SELECT o.tenant, count(*) AS n FROM demo.placed_order o
    WHERE NOT EXISTS (SELECT FROM demo.shipment s WHERE s.order_id = o.id) GROUP BY o.tenant
)
SELECT c.tenant, c.n, coalesce(p.n, 0), coalesce(h.n, 0), coalesce(h.doubled, 0), coalesce(l.n, 0),
    extract(epoch FROM h.p50)::float8, extract(epoch FROM h.p99)::float8
FROM committed c LEFT JOIN published p USING (tenant) LEFT JOIN handled h USING (tenant) LEFT JOIN lost l USING (tenant)
ORDER BY c.n DESC, c.tenant
"""
# Cheap enough for every frame of the live view.
_PROGRESS = """
SELECT (SELECT count(*) FROM demo.placed_order), (SELECT count(*) FROM demo.shipment),
    (SELECT count(*) FROM demo.placed_order WHERE tenant <> 'noisy'),
    (SELECT count(*) FROM demo.shipment WHERE tenant <> 'noisy')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantCounts:
    """One tenant's row. Times are seconds from the event's insert, just before its commit, to the handler's start."""

    tenant: str
    committed: int
    published: int
    handled: int
    doubled: int
    lost: int
    p50_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far everybody is, and the quiet tenants among them."""

    committed: int
    handled: int
    quiet_committed: int
    quiet_handled: int

    @property
    def is_drained(self) -> bool:
        """Whether nothing that was committed still waits."""
        return self.handled >= self.committed


async def read_progress(connection: AsyncConnection) -> Progress:
    """Count what is there now."""
    row = await (await connection.execute(_PROGRESS)).fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM has one row
    return Progress(committed=row[0], handled=row[1], quiet_committed=row[2], quiet_handled=row[3])


async def read_clock(connection: AsyncConnection) -> datetime:
    """The database's time."""
    row = await (await connection.execute("SELECT clock_timestamp()")).fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM has one row
    moment: datetime = row[0]
    return moment


async def read_counts(connection: AsyncConnection, *, since: datetime) -> list[TenantCounts]:
    """Count per tenant what was committed after *since*, the largest first."""
    rows = await (await connection.execute(_PER_TENANT, {"since": since})).fetchall()
    names = ("tenant", "committed", "published", "handled", "doubled", "lost", "p50_s", "p99_s")
    return [TenantCounts(**dict(zip(names, row, strict=True))) for row in rows]


def as_table(counts: Sequence[TenantCounts], suppressed: Mapping[str, int]) -> Table:
    """The counts as people read them; p50 and p99 are of the time from commit to the handler's start."""
    table = Table("tenant", *(f"{name}" for name in ("committed", "published", "handled")), box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_column("suppressed", justify="right")
    table.add_column("p50", justify="right")
    table.add_column("p99", justify="right")
    for row in counts:
        numbers = (row.committed, row.published, row.handled, suppressed.get(row.tenant, 0))
        table.add_row(row.tenant, *(f"{number:,}" for number in numbers), _time(row.p50_s), _time(row.p99_s))
    return table


def verdict(counts: Sequence[TenantCounts], suppressed: Mapping[str, int]) -> tuple[str, bool]:
    """The last line, and whether it is good: everything handled, once."""
    committed = sum(row.committed for row in counts)
    handled = sum(row.handled for row in counts)
    lost = sum(row.lost for row in counts)
    doubled = sum(row.doubled for row in counts)
    line = (
        f"committed {committed:,}, handled {handled:,}, "
        f"duplicates suppressed {sum(suppressed.values()):,}, lost {lost:,}"
    )
    if doubled:
        line += f", doubled {doubled:,}"
    return line, lost == 0 and doubled == 0 and committed > 0


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:,.0f} ms" if seconds < 10 else f"{seconds:,.1f} s"  # noqa: PLR2004 - where ms tire the eye
