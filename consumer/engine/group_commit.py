"""Group commit: what many slots want written at about the same time is written at once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from outbox.errors import StoreUnavailable

T = TypeVar("T")
R = TypeVar("R")
V = TypeVar("V")

_GATHER_S: Final = 0.0003
_AT_ONCE_MAX: Final = 500


class GroupCommit(Generic[T, R]):
    """Batches of one kind of write, one batch at a time; all of it runs on one event loop.

    The first wish waits a moment for others; what comes while a batch is under way is the next one.
    """

    def __init__(self, write: Callable[[Sequence[T]], Awaitable[Sequence[R]]]) -> None:
        """*write* answers each item, in order, and has committed when it returns."""
        self._write = write
        self._wishes: list[tuple[T, asyncio.Future[R]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def ask(self, item: T) -> R:
        """Have *item* written with those that come with it, and return its own answer.

        Raises:
            StoreUnavailable: whether it was written is unknown.
        """
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._wishes.append((item, answer))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        return await answer

    async def close(self) -> None:
        """Write nothing more. Whoever still waits is the caller's to end."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.cancel()
            await asyncio.wait([writing])

    async def _write_all(self) -> None:
        await asyncio.sleep(_GATHER_S)
        while self._wishes:
            batch, self._wishes = self._wishes[:_AT_ONCE_MAX], self._wishes[_AT_ONCE_MAX:]
            await self._write_batch(batch)
        self._writing = None

    async def _write_batch(self, batch: Sequence[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            answers = await self._write([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001 - it is the business of whoever asked
            if len(batch) == 1 or isinstance(error, StoreUnavailable):
                for _, answer in batch:
                    _tell(answer, answer.set_exception, error)
                return
            # What is wrong with one of them is no other's concern.
            for one in batch:
                await self._write_batch([one])
        else:
            for (_, answer), found in zip(batch, answers, strict=True):
                _tell(answer, answer.set_result, found)


def _tell(answer: "asyncio.Future[R]", tell: Callable[[V], None], what: V) -> None:
    if not answer.done():  # whoever asked may have gone
        tell(what)
