"""A status as people read it: what is wrong first, then tables."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.text import Text

from consumer.status import Status, problems
from consumer.store.incarnation import Incarnation
from outbox.shell.console import table
from outbox.shell.logs import harmless
from outbox.shell.words import counted

_LANES_MAX = 20
_KEYS_MAX = 20
_SHORT_S = 10


def show(status: Status, console: Console) -> None:
    """Print *status*. What came from outside is printed as plain text, without control characters."""
    console.print(render(status))


def render(status: Status) -> RenderableType:
    """*status* as something rich prints: problems, then what waits, why, which keys, what died, who is alive."""
    return Group(*_headline(status), *_tables(status))


def _headline(status: Status) -> Iterable[RenderableType]:
    alive = sum(1 for one in status.incarnations if one.is_alive)
    yield Text(
        f"group {status.group}: {counted(status.lanes, 'lane')} known, {counted(alive, 'process')} alive", style="bold"
    )
    found = problems(status)
    if not found:
        where = "" if status.queued is not None else ", as far as is known without the broker"
        yield Text(f"nothing is stuck{where}", style="green")
    for problem in found:
        yield Text(f"! {problem}", style="yellow")


def _tables(status: Status) -> Iterable[RenderableType]:
    at = status.at
    queued = status.queued or ()
    yield from _table(
        "paused",
        ("what", "by", "as", "since", "until", "why"),
        [
            (str(one.scope), one.actor, one.source.value, _ago(one.set_at, at), _until(one.until, at), one.reason)
            for one in status.pauses
        ],
    )
    yield from _table(
        "weights of tenants",
        ("tenant", "weight", "by", "since", "until", "why"),
        [
            (one.tenant, one.weight, one.actor, _ago(one.set_at, at), _until(one.until, at), one.reason)
            for one in status.weights
        ],
    )
    yield from _table(
        f"in queues, by tier and tenant{_of(len(queued), _LANES_MAX)}",
        ("tier", "tenant", "events"),
        [(one.tier.label, one.tenant, one.events) for one in queued[:_LANES_MAX]],
    )
    yield from _table(
        f"in hand or put off, by tier and tenant{_of(len(status.waiting), _LANES_MAX)}",
        ("tier", "tenant", "events", "due", "in hand", "since", "overdue"),
        [
            (one.tier.label, one.tenant, one.rows, one.due, one.in_hand, _ago(one.waiting_since, at), _s(one.overdue_s))
            for one in status.waiting[:_LANES_MAX]
        ],
    )
    yield from _table(
        "in hand or put off, by reason", ("reason", "events", "due", "in hand", "paused", "since"), _reasons(status)
    )
    yield from _table(
        f"blocked ordering keys{_of(status.blocked.total, _KEYS_MAX)}",
        ("tier", "tenant", "key", "waits for", "which is", "events behind", "since"),
        [
            (
                one.tier.label,
                one.tenant,
                one.key,
                one.number,
                one.by if one.dead_id is None else f"dead letter {one.dead_id}",
                one.waiting,
                _ago(one.waiting_since, at),
            )
            for one in status.blocked.longest[:_KEYS_MAX]
        ],
    )
    yield from _table(
        "open dead letters",
        ("category", "letters", "tenants", "no copy yet", "since"),
        [(one.category.value, one.letters, one.tenants, one.unpublished, _ago(one.since, at)) for one in status.dead],
    )
    yield from _table(
        "processes",
        ("host", "pid", "version", "running for", "alive", "lanes", "handlers running", "settled", "work rows in hand"),
        [_process(one, at) for one in status.incarnations],
    )


def _process(one: Incarnation, at: datetime) -> tuple[str | int, ...]:
    said = one.heartbeat
    return (
        one.host,
        one.pid,
        one.version or "-",
        _ago(one.started_at, at),
        "yes" if one.is_alive else "no",
        *(
            ("-", "-", "-")
            if said is None
            else (f"{said.attached} of {said.lanes}", sum(run.events for run in said.running), said.settled)
        ),
        one.owned,
    )


def _until(time: datetime | None, now: datetime) -> str:
    return "resumed" if time is None else f"in {_s(max(0.0, (time - now).total_seconds()))}"


def _reasons(status: Status) -> list[tuple[str | int, ...]]:
    return [
        (
            reason.value,
            sum(count.rows for count in of_reason),
            sum(count.due for count in of_reason),
            sum(count.owned for count in of_reason),
            sum(count.paused for count in of_reason),
            _ago(min(count.waiting_since for count in of_reason), status.at),
        )
        for reason in sorted({count.reason for count in status.work})
        for of_reason in [[count for count in status.work if count.reason is reason]]
    ]


def _table(title: str, columns: Sequence[str], rows: Sequence[tuple[str | int, ...]]) -> Iterable[RenderableType]:
    if not rows:
        return
    numbers = {name for name, *cells in zip(columns, *rows, strict=True) if all(isinstance(one, int) for one in cells)}
    made = table(*columns, right=numbers)
    for row in rows:
        made.add_row(*(Text(harmless(str(cell))) for cell in row))
    # A title of the table's own would be folded to the table's width.
    yield from (Text(""), Text(title, style="table.title"), made)


def _of(total: int, shown: int) -> str:
    return f" ({shown} of {total})" if total > shown else ""


def _ago(time: datetime, now: datetime) -> str:
    return _s(max(0.0, (now - time).total_seconds()))


def _s(seconds: float) -> str:
    """*seconds* in its two largest units."""
    whole = int(seconds)
    for unit, size, below, below_size in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // below_size} {below}"
    return f"{seconds:.1f} s" if 0 < seconds < _SHORT_S else f"{whole} s"
