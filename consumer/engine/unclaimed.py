"""One try of a handler that the ledger is not asked for: nothing is held while it runs, and nothing claimed.

Only where the event's order or the handler's session needs a transaction does ``engine.attempt`` run it in one.
"""

from dataclasses import replace

import psycopg

from consumer.decide.delivery import Refused, read_payload
from consumer.decide.result import result_text
from consumer.engine.attempt import Handled, Job, Result, Returned, guarded
from consumer.engine.authorisation import refusal
from consumer.engine.calling import arguments_of, outcome_of
from consumer.engine.leased import Invoke
from consumer.outcome import DeadLetter, Done
from consumer.registry import LedgerMode
from consumer.store.connection import SlotConnection
from consumer.store.ledger import Ledger
from outbox.errors import StoreUnavailable


def is_unclaimed(job: Job) -> bool:
    """Whether *job* is run here."""
    handler = job.handler
    return handler.ledger is LedgerMode.NONE and job.event.ordering is None and not handler.wants_session


class Unclaimed:
    """Runs such attempts for one group."""

    def __init__(self, *, group: str, ledger: Ledger, result_bytes_max: int) -> None:
        self._group = group
        self._ledger = ledger
        self._result_bytes_max = result_bytes_max

    async def run(self, slot: SlotConnection, job: Job, *, invoke: Invoke) -> Result:
        """Try *job* once. Where something of it is kept, a retry or a result, writing that down is the caller's.

        Raises:
            StoreUnavailable: how often it was tried is not known now.
        """
        payload = read_payload(job.handler, job.event, job.body)
        if isinstance(payload, Refused):
            return Returned(attempt=1, outcome=DeadLetter(reason=payload.reason, category=payload.category))
        attempt = 1 + (await self._spent(slot, job) if job.owner is not None and not job.is_replay else 0)
        result = await guarded(lambda: self._call(job, payload, attempt, invoke), attempt=attempt)
        if isinstance(result, Handled):
            return replace(result, is_written=job.owner is None and result.result is None)
        return result

    async def _call(self, job: Job, payload: object, attempt: int, invoke: Invoke) -> Handled | Returned:
        if (refused := await refusal(job.handler, job.event)) is not None:
            return Returned(attempt=attempt, outcome=refused)
        arguments = arguments_of(self._group, job.handler, job.event, payload, attempt=attempt)
        outcome = outcome_of(await invoke(job.handler, job.event, arguments), job.handler)
        if not isinstance(outcome, Done):
            return Returned(attempt=attempt, outcome=outcome)
        return Handled(attempt=attempt, result=result_text(outcome.result, bytes_max=self._result_bytes_max))

    async def _spent(self, slot: SlotConnection, job: Job) -> int:
        connection = await slot.open()
        try:
            return await self._ledger.spent(connection, job.event, job.handler.name)
        except psycopg.Error as error:
            raise StoreUnavailable(f"database: want the attempts spent, got {type(error).__name__}") from error
        finally:
            await slot.reset()
