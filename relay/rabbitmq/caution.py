"""Finding the one event that makes a broker close the channel, without blaming its neighbours.

A refused publish (a body over the broker's own limit, say) closes the channel and leaves everything
unsettled unknown. A broker that names its limit names the offenders, and what is over that limit is not sent
any more. Otherwise what was unsettled is suspect from then on: sent again, each suspect goes out alone
and is waited for, until the broker closes on one that was alone. That one is condemned, the others are
cleared. Verdicts outlive the connection, since reaching one costs it. No I/O, no clock.
"""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from outbox.naming import Lane
from relay.ports import Category, Failed, Outgoing

_Key = tuple[Lane, UUID]

_CONTENT_TOO_LARGE: Final = 311
_LIMIT: Final = re.compile(r"message size \d+ is larger than (?:configured )?max size (\d+)")
_FRAME: Final = re.compile(r"frame.too.large", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why the broker closed the channel over a message. *body_bytes_max* is its limit, where it named one."""

    category: Category
    reason: str
    body_bytes_max: int | None = None


def refusal(code: int, text: str, *, reason: str) -> Refusal:
    """What the broker's *code* and *text* mean; *reason* repeats them in a sentence."""
    limit = _LIMIT.search(text)
    is_size = code == _CONTENT_TOO_LARGE or limit is not None or _FRAME.search(text) is not None
    return Refusal(
        category=Category.TOO_LARGE if is_size else Category.REFUSED,
        reason=reason,
        body_bytes_max=None if limit is None else int(limit.group(1)),
    )


def verdict(outgoing: Outgoing, refusal: Refusal) -> Failed:
    """What *refusal* means for *outgoing*, in words that fit this one."""
    reason = refusal.reason
    if refusal.body_bytes_max is not None:
        reason = f"payload: want at most {refusal.body_bytes_max} bytes, got {len(outgoing.event.payload)}; {reason}"
    return Failed(tag=outgoing.tag, category=refusal.category, reason=reason)


class Caution:
    """What must be sent alone, and what must not be sent again."""

    def __init__(self) -> None:
        self._suspects: set[_Key] = set()
        self._verdicts: dict[_Key, Refusal] = {}
        self._waiting: deque[Outgoing] = deque()
        self._alone: _Key | None = None
        self.body_bytes_max: int | None = None
        """The broker's limit, once it has named one; forgotten when it may have been changed: with the connection."""

    @property
    def is_needed(self) -> bool:
        """Whether ``add`` and ``due`` decide what is sent; otherwise anything may be, at once."""
        return bool(self._suspects or self._verdicts or self._waiting or self._alone)

    def refused(self, unsettled: Sequence[Outgoing], refusal: Refusal) -> None:
        """The broker closed the channel over one of *unsettled*."""
        self._forget_connection()
        self.body_bytes_max = refusal.body_bytes_max
        condemned = _over(unsettled, refusal.body_bytes_max) or (unsettled if len(unsettled) == 1 else ())
        self._suspects = set() if condemned else {_key(outgoing) for outgoing in unsettled}
        self._verdicts |= {_key(outgoing): refusal for outgoing in condemned}

    def interrupted(self) -> None:
        """The connection was lost for another reason: who was suspect still is."""
        if self._alone is not None:
            self._suspects.add(self._alone)
        self.body_bytes_max = None
        self._forget_connection()

    def add(self, batch: Sequence[Outgoing]) -> Sequence[Failed]:
        """Queue *batch* behind what waits, save the condemned, which are returned."""
        failed = []
        for outgoing in batch:
            refusal = self._verdicts.pop(_key(outgoing), None)
            if refusal is None:
                self._waiting.append(outgoing)
            else:
                failed.append(verdict(outgoing, refusal))
        return failed

    def due(self, *, is_idle: bool) -> Sequence[Outgoing]:
        """What may be sent now, in order; *is_idle* says that nothing sent is unsettled."""
        if self._alone is not None and not is_idle:
            return ()
        self._alone = None
        run: list[Outgoing] = []
        while self._waiting:
            key = _key(self._waiting[0])
            if key not in self._suspects:
                run.append(self._waiting.popleft())
            elif run or not is_idle:
                break
            else:
                self._suspects.discard(key)
                self._alone = key
                return (self._waiting.popleft(),)
        return run

    def _forget_connection(self) -> None:
        self._waiting.clear()
        self._alone = None


def _over(unsettled: Sequence[Outgoing], body_bytes_max: int | None) -> Sequence[Outgoing]:
    if body_bytes_max is None:
        return ()
    return [outgoing for outgoing in unsettled if len(outgoing.event.payload) > body_bytes_max]


def _key(outgoing: Outgoing) -> _Key:
    return outgoing.lane, outgoing.event.id
