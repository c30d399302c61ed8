"""One session's lease on its buckets: kept while it works, and given back at its end."""

import math
import time
from collections.abc import Collection, Sequence

import structlog

from relay.gauges import Gauges
from relay.limits import Limits
from relay.log import leases
from relay.log.leases import Taken
from relay.log.sessions import Sessions

log = structlog.get_logger(__name__)

_MARGIN_S = 0.05
_AGAIN_S = 0.2


class Lease:
    """What is owned under *token*, and until when. Nothing may be published after ``until`` unless it was kept."""

    def __init__(
        self, token: int, sessions: Sessions, *, former: Sequence[int], limits: Limits, gauges: Gauges
    ) -> None:
        """Args:
        former: tokens of this process's sessions before; what they held need not expire.
        """
        self.token = token
        self._sessions = sessions
        self._former = former
        self._limits = limits
        self._gauges = gauges
        self.owned = 0
        self.relays = 0
        """How many relays lived and reached the broker when it was last counted."""
        self.take_at = -math.inf
        """When to renew and take next, in monotonic seconds."""
        self._renew_at = math.inf
        self._until = -math.inf
        self._reached_at = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether others may have taken what is ours."""
        return time.monotonic() >= self._until

    def reached_broker(self) -> None:
        """The broker is there. Without it for a lease, others take our share."""
        was_able, self._reached_at = self._is_able, time.monotonic()
        if not was_able:
            self.take_at = self._reached_at

    async def keep(self) -> None:
        """Renew if it is time. Called before every wait of work that may take longer than a lease.

        Raises:
            LeaseLost: something of ours is another's now.
            StoreUnavailable: the database cannot say.
        """
        asked_at = time.monotonic()
        if asked_at < self._renew_at:
            return
        async with self._sessions.writing() as connection:
            asked_at = time.monotonic()
            await leases.renew(
                connection,
                self.token,
                owned=self.owned,
                is_able=self._is_able,
                lease_s=self._limits.lease_s,
                within_s=self._limits.wait_s,
            )
        self._renewed(asked_at)

    async def take(self) -> Taken:
        """Renew, count the relays, and take what nobody holds, up to our share.

        Raises:
            LeaseLost: something of ours is another's now.
            StoreUnavailable: the database cannot say.
        """
        async with self._sessions.writing() as connection:
            asked_at = time.monotonic()
            taken = await leases.take(
                connection,
                self.token,
                former=self._former,
                owned=self.owned,
                is_able=self._is_able,
                lease_s=self._limits.lease_s,
                within_s=self._limits.wait_s,
            )
            self.owned += len(taken.bases)
        self._renewed(asked_at)
        if taken.has_left:
            self.take_at = asked_at + _AGAIN_S
        else:
            self.take_at, self._former = self._renew_at, ()
        self.relays = taken.relays
        self._gauges.relays, self._gauges.share = taken.relays, taken.share.target
        if taken.bases:
            self._gauges.takeovers += 1
            log.info("buckets taken", count=len(taken.bases), streams=len(taken.streams), relays=taken.relays)
        return taken

    async def look(self) -> None:
        """Take soon if there is something to take."""
        async with self._sessions.writing() as connection:
            if await leases.has_free(connection, self.token, within_s=self._limits.wait_s):
                self.take_at = time.monotonic()

    def gave_up(self, places: Collection[tuple[str, int]]) -> None:
        """These buckets carry our token no more. Called while nobody else writes."""
        if not places:
            return
        self.owned -= len(places)
        self._gauges.given_up += len(places)
        log.info("buckets given up", count=len(places), relays=self.relays)

    async def release(self) -> None:
        """Let all of it be taken at once, and be counted no more."""
        async with self._sessions.writing() as connection:
            await leases.release(connection, self.token, within_s=self._limits.wait_s)

    @property
    def _is_able(self) -> bool:
        return time.monotonic() < self._reached_at + self._limits.lease_s

    def _renewed(self, asked_at: float) -> None:
        # From before the question: the database's clock started the lease after that.
        self._until = asked_at + self._limits.lease_s - _MARGIN_S
        self._renew_at = asked_at + self._limits.wait_s
