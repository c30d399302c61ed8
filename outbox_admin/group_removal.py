"""Removing a group: it reads the log no more, and what was kept for it goes, in the database and in the broker.

The relay finds within a second that it has nothing to publish to it, and goes on for the others. The ledger's rows
go with their partitions, as all of them do: a group that is added again under the name has them still.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, LiteralString

from psycopg import sql

from consumer.store import incarnation
from outbox.errors import ConfigError
from outbox.event import Tier
from outbox.naming import Lane
from outbox.shell.database import Connection, store_errors
from outbox.topology import directory_queue, refused_queue
from outbox_admin import audit
from outbox_admin.choices import check_group_known
from outbox_admin.groups import list_groups
from outbox_admin.offboarding import Desk, Tell

# A relay that had the group in hand declares a lane anew before it finds that the group is gone.
_GONE_S: Final = 3.0
_LOOK_EVERY_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What there is of a group: its *queues*, and what would go with it.

    *has_tables* is false where the consumer's tables are in another database: what they keep stays.
    """

    group: str
    queues: tuple[str, ...]
    deferred: int
    has_tables: bool
    work: int = 0
    dead: int = 0


async def survey(connection: Connection, group: str) -> Survey:
    """What there is of *group*.

    Raises:
        ConfigError: it reads no log here, or processes of it are alive.
    """
    with store_errors():
        known = [one.name for one in await list_groups(connection)]
        check_group_known(group, known, otherwise="one that was added")
        has_tables = await (await connection.execute(_HAS_TABLES)).fetchone() is not None
        alive = sum(one.is_alive for one in await incarnation.every(connection, group)) if has_tables else 0
        if alive:
            raise ConfigError(f"group {group}: want no process of it alive, got {alive}; stop outbox-consumer first")
        lanes = await _rows(connection, _LANES, group)
        ((deferred,),) = await _rows(connection, _DEFERRED, group)
        ((work, dead),) = await _rows(connection, _KEPT, group) if has_tables else [(0, 0)]
    queues = [Lane(group=group, tier=Tier(tier), tenant=tenant).queue for tier, tenant in lanes]
    return Survey(
        group=group,
        queues=(*queues, directory_queue(group), refused_queue(group)),
        deferred=deferred,
        has_tables=has_tables,
        work=work,
        dead=dead,
    )


async def remove(
    connection: Connection,
    opened: Callable[[], AbstractAsyncContextManager[Desk]],
    found: Survey,
    *,
    actor: str,
    tell: Tell,
) -> None:
    """Remove the group that was *found*, and tell each step. Broken off, queues may be left: the audit names them.

    Raises:
        BrokerUnavailable: nothing is done; or, where the broker went away in the middle, its queues are left and it
            reads the log no more.
    """
    detail = {"queues": list(found.queues), "work": found.work, "dead": found.dead, "deferred": found.deferred}
    # Opened first: with the broker away nothing is begun, and the command can be given again.
    async with opened() as desk:
        with store_errors():
            async with connection.transaction():
                await connection.execute(_REMOVE, {"group": found.group})
                for (table,) in await (await connection.execute(_TABLES)).fetchall():
                    emptying = _EMPTY.format(table=sql.Identifier("consumer", str(table)))
                    await connection.execute(emptying, {"group": found.group})
                await audit.record(connection, actor=actor, action="group.remove", group=found.group, detail=detail)
        tell(f"group {found.group} reads the log no more")
        gone_since = time.monotonic()
        while time.monotonic() < gone_since + _GONE_S:
            for queue in found.queues:
                if await desk.state(queue) is not None:
                    await desk.delete(queue)
                    tell(f"{queue}: deleted")
                    gone_since = time.monotonic()
            await asyncio.sleep(_LOOK_EVERY_S)


async def _rows(connection: Connection, query: LiteralString, group: str) -> Sequence[tuple[Any, ...]]:
    return await (await connection.execute(query, {"group": group})).fetchall()


_HAS_TABLES: Final = "SELECT WHERE to_regclass('consumer.work') IS NOT NULL"
_LANES: Final = "SELECT tier, tenant FROM outbox.lane WHERE group_name = %(group)s ORDER BY 1, 2"
_DEFERRED: Final = "SELECT count(*) FROM outbox.deferred WHERE group_name = %(group)s"
_KEPT: Final = """
    SELECT (SELECT count(*) FROM consumer.work WHERE group_name = %(group)s),
           (SELECT count(*) FROM consumer.dead WHERE group_name = %(group)s AND resolution IS NULL)
"""
_REMOVE: Final = "DELETE FROM outbox.consumer_group WHERE group_name = %(group)s"
# Whatever a group has rows in, but for the ledger's partitions and the audit; none where the schema is elsewhere.
_TABLES: Final = """
    SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = to_regnamespace('consumer') AND c.relkind = 'r' AND NOT c.relispartition
      AND a.attname = 'group_name' AND c.relname <> 'audit' ORDER BY c.relname
"""
_EMPTY: Final = sql.SQL("DELETE FROM {table} WHERE group_name = %(group)s")
