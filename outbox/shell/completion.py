"""Values that a shell completes: only a database that is configured is asked, for a second, and failure is silence."""

import asyncio
import os
from typing import Final

_WITHIN_S: Final = 1.0
_NAMES: Final = ("OUTBOX_DATABASE_URL", "DATABASE_URL")
_TIERS: Final = ("interactive", "standard", "bulk")


def groups(incomplete: str) -> list[str]:
    """The groups whose names begin with *incomplete*, as far as the database that the environment names tells them."""
    url = next((os.environ[name] for name in _NAMES if os.environ.get(name)), None)
    if url is None:
        return []
    try:
        return [name for name in asyncio.run(_groups(url)) if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a shell that waits for completions shows no errors
        return []


def tiers(incomplete: str) -> list[str]:
    """The tiers that begin with *incomplete*."""
    return [tier for tier in _TIERS if tier.startswith(incomplete)]


async def _groups(url: str) -> list[str]:
    from outbox.shell.database import connect  # noqa: PLC0415 - most completions need no driver

    async with (
        asyncio.timeout(_WITHIN_S),
        await connect(url, application_name="outbox completion", connect_timeout_s=_WITHIN_S) as connection,
    ):
        rows = await connection.execute("SELECT group_name FROM outbox.consumer_group ORDER BY group_name")
        return [str(name) for (name,) in await rows.fetchall()]
