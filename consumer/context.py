"""What a handler is told besides its payload."""

from dataclasses import dataclass
from datetime import datetime

from structlog.typing import FilteringBoundLogger

from outbox.event import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One attempt, as its handler sees it.

    *attempt* counts from 1. *deadline* is when the attempt has to be over, in UTC. *idempotency_key* is the same at
    every attempt of this handler with this event, and for its ``already_done``: hand it to other systems that take
    one. *log* already names the event, the tenant, the handler and the attempt. *fencing_token* is the claim's, for
    leased handlers: a later claim of the same event has a greater one, so a system that remembers the greatest refuses
    whoever woke up late.
    """

    event: Event
    attempt: int
    deadline: datetime
    idempotency_key: str
    log: FilteringBoundLogger
    fencing_token: int | None = None

    @property
    def tenant(self) -> str:
        """Whose event it is. The session's row-level security setting says the same."""
        return self.event.tenant

    @property
    def actor(self) -> str | None:
        """Who caused the event, if its app said so."""
        return self.event.actor
