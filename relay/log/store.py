"""A relay's sessions on the database: fixed plans, and a deadline that holds against a server that is frozen."""

from collections.abc import Mapping

from outbox.shell import severed
from outbox.shell.severed import ANY_PLAN, FIXED_PLANS, Connection, close, deadline, sever

__all__ = ["ANY_PLAN", "FIXED_PLANS", "Connection", "close", "connect", "deadline", "sever"]


async def connect(url: str, settings: Mapping[str, str], *, connect_s: float, statement_s: float) -> Connection:
    """As ``outbox.shell.severed.connect``, by the relay's name."""
    return await severed.connect(
        url, settings, application_name="outbox-relay", connect_s=connect_s, statement_s=statement_s
    )
