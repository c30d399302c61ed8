"""Which way an attempt is run: by what its handler has declared of the ledger."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from consumer.api import Consumer
from consumer.engine.abandoned import Abandoned
from consumer.engine.attempt import Attempts, Job, Result
from consumer.engine.leased import Leased
from consumer.engine.slot import Slot
from consumer.engine.unclaimed import Unclaimed, is_unclaimed
from consumer.limits import Limits
from consumer.registry import LedgerMode
from consumer.store.claims import Claims
from consumer.store.desk import Desk
from consumer.store.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Modes:
    """The ways of one group."""

    attempts: Attempts
    leased: Leased
    unclaimed: Unclaimed

    def run(self, slot: Slot, job: Job) -> Awaitable[Result]:
        """Try *job* once. Raises StoreUnavailable and LeaseLost, as each of the ways says."""
        if job.handler.ledger is LedgerMode.LEASED:
            return self.leased.run(job, invoke=slot.invoke)
        if is_unclaimed(job):
            return self.unclaimed.run(slot.connection, job, invoke=slot.invoke)
        return slot.attempt(self.attempts, job)


def modes_of(
    consumer: Consumer,
    limits: Limits,
    *,
    ledger: Ledger,
    claims: Claims,
    horizon: timedelta,
    incarnation: Callable[[], UUID],
    desks: tuple[Desk, Desk],
    abandoned: Abandoned,
) -> Modes:
    """The ways of *consumer*. *incarnation* and *desks* are for leased handlers, as ``Leased`` says."""
    return Modes(
        attempts=Attempts(
            group=consumer.group,
            ledger=ledger,
            horizon=horizon,
            skips_dead=consumer.skips_dead,
            result_bytes_max=limits.result_bytes_max,
            abandoned=abandoned,
        ),
        leased=Leased(
            group=consumer.group,
            claims=claims,
            incarnation=incarnation,
            desks=desks,
            skips_dead=consumer.skips_dead,
            result_bytes_max=limits.result_bytes_max,
        ),
        unclaimed=Unclaimed(group=consumer.group, ledger=ledger, result_bytes_max=limits.result_bytes_max),
    )
