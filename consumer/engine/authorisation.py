"""Whether an event may still be handled: the app's own function is asked, and nothing but True lets it pass."""

import asyncio
import inspect

from consumer.outcome import DeadCategory, DeadLetter
from consumer.registry import Handler
from outbox.errors import PermanentError
from outbox.event import Event
from outbox.tenancy import tenant_scope


async def refusal(handler: Handler, event: Event) -> DeadLetter | None:
    """Return what becomes of *event*, for *handler*, if the app says no; None if it says True, or is not asked.

    Raises:
        TimeoutError: it takes longer than the handler may.
        PermanentError: it says something else. Nothing is handled because somebody forgot to return.
    """
    if handler.checks.authorise is None:
        return None
    async with asyncio.timeout(handler.deadline_s):
        with tenant_scope(event.tenant):
            returned = handler.checks.authorise(event)
            if inspect.isawaitable(returned):
                returned = await returned
    match returned:
        case True:
            return None
        case False:
            return DeadLetter(reason="the app does not allow it", category=DeadCategory.SECURITY)
        case str():
            return DeadLetter(reason=returned, category=DeadCategory.SECURITY)
        case _:
            raise PermanentError(f"authorise: want True, False or a reason, got {type(returned).__name__}")
