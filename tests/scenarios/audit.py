"""What a scenario's end is held to, asked of the database and the broker."""

from tests.scenarios.world import World
from tests.support.wait import until

_LOST = "SELECT count(*) FROM posting p WHERE NOT EXISTS (SELECT FROM effect e WHERE e.posting_id = p.id)"
_DOUBLED = "SELECT count(*) FROM (SELECT posting_id FROM effect GROUP BY posting_id HAVING count(*) > 1) d"
_INVENTED = "SELECT count(*) FROM effect e WHERE NOT EXISTS (SELECT FROM posting p WHERE p.id = e.posting_id)"
_DISORDERED = """
    SELECT count(*) FROM (
        SELECT number - lag(number, 1, 0) OVER (PARTITION BY tenant, account ORDER BY at) AS step
        FROM effect WHERE account IS NOT NULL
    ) s WHERE step <> 1
"""
# What a process holds, or has not finished with.
_LEFT_OVER = {
    "work rows": "SELECT count(*) FROM consumer.work",
    "dead letters": "SELECT count(*) FROM consumer.dead",
    "running in the ledger": "SELECT count(*) FROM consumer.ledger WHERE state NOT IN ('done', 'skipped')",
    "leases of consumers": "SELECT count(*) FROM consumer.incarnation WHERE expires_at > clock_timestamp()",
    "leases of relays": "SELECT count(*) FROM outbox.bucket WHERE expires_at > clock_timestamp()",
    "streams": "SELECT count(*) FROM outbox.stream",
    "deferred": "SELECT count(*) FROM outbox.deferred",
}
_SESSIONS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'outbox-%%'
"""


def effects(world: World) -> dict[str, int]:
    """How often what must never happen did; all 0 is what is promised."""
    queries = {"lost": _LOST, "doubled": _DOUBLED, "invented": _INVENTED, "out of order": _DISORDERED}
    return {name: world.value(query) for name, query in queries.items()}


async def left_over(world: World) -> dict[str, int]:
    """What is still open; all 0 once every process has ended.

    Raises:
        AssertionError: sessions of ours stay open. Each ends a little after its process, so they are waited for.
    """
    await until(lambda: not world.value(_SESSIONS), what="the sessions of our processes to end")
    return {name: world.value(query) for name, query in _LEFT_OVER.items()}


GOOD = {"lost": 0, "doubled": 0, "invented": 0, "out of order": 0}
NOTHING = dict.fromkeys(_LEFT_OVER, 0)
