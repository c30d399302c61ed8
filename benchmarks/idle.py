"""NAME=idle: what a relay with nothing to do costs: queries per second, and CPU of its process.

The process is the real one, janitor and health included, and owns every bucket of a log that holds published events.
A query is a transaction, or a statement outside of any, counted on the wire. BENCH_SECONDS says for how long it is
watched.
"""

import asyncio
import os
import time
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from psycopg import AsyncConnection

from benchmarks.events import lanes
from benchmarks.retained import retain
from benchmarks.servers import Servers, on_servers
from tests.support.processes import ConsoleProcess
from tests.support.proxy import Proxy
from tests.support.wait import until

_SECONDS = float(os.environ.get("BENCH_SECONDS", "60"))
_RETAINED = 100_000
_TENANTS = 100
# The janitor's first look, and what was left over from the start.
_CALM_S = 15.0
_OWNED = "SELECT count(*) FROM outbox.bucket WHERE expires_at < clock_timestamp()"


def main() -> dict[str, float]:
    """Watch one relay and return what it cost."""
    return on_servers(_run)


async def _run(given: Servers) -> dict[str, float]:
    await retain(given.database_url, lanes(_TENANTS), count=_RETAINED)
    address = urlsplit(given.database_url)
    async with Proxy(host=address.hostname or "", port=address.port or 5432, speaks="postgres") as proxy:
        login = address.netloc.rpartition("@")[0]
        settings = {
            "OUTBOX_DATABASE_URL": urlunsplit(address._replace(netloc=f"{login}@127.0.0.1:{proxy.port}")),
            "OUTBOX_RABBITMQ_URL": given.rabbitmq_url,
            "OUTBOX_RELAY_HEALTH_PORT": "0",
        }
        relay = ConsoleProcess.start("outbox-relay", "run", settings=settings)
        try:
            async with await AsyncConnection.connect(given.database_url, autocommit=True) as connection:
                await until(lambda: _is_none(connection, _OWNED), deadline_s=60, what="the relay to own every bucket")
            await asyncio.sleep(_CALM_S)
            began, before, used = time.monotonic(), proxy.transactions, _cpu_s(relay.pid)
            await asyncio.sleep(_SECONDS)
            seconds = time.monotonic() - began
            asked, used = proxy.transactions - before, _cpu_s(relay.pid) - used
        finally:
            relay.close()
    return {
        "queries_per_s": round(asked / seconds, 2),
        "cpu_percent": round(used / seconds * 100, 2),
        "seconds": round(seconds, 1),
    }


async def _is_none(connection: AsyncConnection, query: str) -> bool:
    row = await (await connection.execute(query)).fetchone()
    return row == (0,)


def _cpu_s(pid: int) -> float:
    """What all threads of process *pid* have used."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
