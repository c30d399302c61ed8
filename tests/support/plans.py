"""The plans that a session has prepared, as they run now."""

import json
from collections.abc import Iterator
from typing import Any

from outbox.shell.severed import Connection


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


async def plan_of(connection: Connection, mark: str, arguments: str) -> list[dict[str, Any]]:
    """The nodes of the prepared statement whose text holds *mark*, as it runs now."""
    row = await (
        await connection.execute("select name from pg_prepared_statements where position(%s in statement) > 0", (mark,))
    ).fetchone()
    assert row is not None
    found = await (
        await connection.execute(f'explain (analyze, timing off, format json) execute "{row[0]}"({arguments})')
    ).fetchone()
    assert found is not None
    plan = found[0] if isinstance(found[0], list) else json.loads(found[0])
    return list(nodes(plan[0]["Plan"]))
