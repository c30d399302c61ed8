"""Publishes again what was asked for, beside the engine: on connections of its own, at a bounded rate.

A chunk is published and confirmed before its request moves on, so a crash repeats a chunk and leaves none out. It
knows no leases: what it publishes was published before, and three copies do no more harm than two.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Final

import structlog

from outbox.errors import BrokerUnavailable, ConfigError, OutboxError
from relay.engine.courier import Courier, Delivered
from relay.gauges import Gauges
from relay.limits import Limits
from relay.log import guard, replays, store
from relay.log.replays import Chunk, Claim, Copy, Done
from relay.log.ringlog import Bounds
from relay.ports import LaneTopology, Publisher

log = structlog.get_logger(__name__)

_CONNECT_S: Final = 5.0
_STATEMENT_S: Final = 60.0
# With the wait for confirms longer than any chunk takes: who has not moved a request by then has died.
_LEASE_S: Final = 120.0
_CHUNKS_PER_S: Final = 10
_SCAN: Final = 2_000
_OUTAGE_S: Final = 5.0
_HELD_BASE_S: Final = 5.0
_HELD_CAP_S: Final = 300.0
_DOUBLINGS_MAX: Final = 10


async def run_replays(
    url: str,
    publisher: Publisher,
    topology: LaneTopology,
    *,
    stop: asyncio.Event,
    limits: Limits,
    gauges: Gauges,
    look_every_s: float = 10.0,
) -> None:
    """Serve replays that the database at *url* asks for, until *stop*. It never fails: it tries again.

    Args:
        publisher: nobody else's; it is open only while there is something to publish.
        look_every_s: how often to look for requests when there are none.
    """
    while not stop.is_set():
        try:
            async with _connected(url) as connection:
                courier = Courier(publisher, topology, connection, limits=limits)
                try:
                    await _Replayer(connection, courier, limits=limits, gauges=gauges).run(stop, look_every_s)
                finally:
                    await courier.close()
        except OutboxError as error:
            # Events flow without it: nobody must stop for this.
            log.warning("replays could not go on", reason=str(error))
        await _wait(stop, look_every_s)


class _Replayer:
    """Serves requests on one connection to the database."""

    def __init__(self, connection: store.Connection, courier: Courier, *, limits: Limits, gauges: Gauges) -> None:
        self._connection = connection
        self._courier = courier
        self._gauges = gauges
        self._chunk = limits.chunk
        self._chunk_bytes = limits.chunk_bytes
        self._lease_s = _LEASE_S + limits.confirm_s

    async def run(self, stop: asyncio.Event, look_every_s: float) -> None:
        while not stop.is_set():
            due_s = await replays.next_due_s(self._connection, within_s=_STATEMENT_S)
            if due_s is None:
                await self._courier.close()
                await _wait(stop, look_every_s)
            elif due_s > 0:
                await _wait(stop, min(due_s, look_every_s))
            else:
                claim = await replays.claim(self._connection, lease_s=self._lease_s, within_s=_STATEMENT_S)
                if claim is not None:
                    await self._serve(claim)

    async def _serve(self, claim: Claim) -> None:
        """Publish the next chunk of *claim*."""
        began = time.monotonic()
        rows = max(1, min(self._chunk, claim.per_s // _CHUNKS_PER_S))
        bounds = Bounds(rows=rows, bytes=self._chunk_bytes, seconds=_STATEMENT_S)
        chunk = await replays.read(self._connection, claim, bounds, scan=_SCAN)
        try:
            delivered = await self._courier.deliver(chunk.copies)
        except (BrokerUnavailable, ConfigError) as error:
            # An outage, not a lane's fault: all of the request waits, and no try is counted.
            await self._courier.close()
            done = Done(after=claim.after, problem=str(error))
            await self._postpone(claim, done, tries=claim.tries, delay_s=_OUTAGE_S)
            return
        self._gauges.replayed += delivered.published
        if delivered.stuck is None:
            await self._advance(claim, chunk, delivered, took_s=time.monotonic() - began)
        else:
            await self._pass_by(claim, chunk.copies, delivered, delivered.stuck)

    async def _advance(self, claim: Claim, chunk: Chunk, delivered: Delivered, *, took_s: float) -> None:
        await replays.advance(
            self._connection,
            claim,
            _done(delivered, chunk.after),
            is_end=chunk.is_last,
            delay_s=max(0.0, len(chunk.copies) / claim.per_s - took_s),
            within_s=_STATEMENT_S,
        )
        if chunk.is_last:
            log.info("replay ended", replay=claim.mark, group=claim.group)

    async def _pass_by(self, claim: Claim, copies: Sequence[Copy], delivered: Delivered, stuck: int) -> None:
        """Let a tenant whose lane takes nothing wait by itself, so that it holds nobody else."""
        held = copies[stuck]
        done = _done(delivered, copies[stuck - 1].place if stuck else claim.after)
        log.warning("replay held", replay=claim.mark, lane=held.lane.queue, reason=delivered.problem)
        if claim.last_hash == held.place.tenant_hash:
            delay_s = min(_HELD_BASE_S * 2.0 ** min(claim.tries, _DOUBLINGS_MAX), _HELD_CAP_S)
            await self._postpone(claim, done, tries=claim.tries + 1, delay_s=delay_s)
            return
        await replays.split(
            self._connection,
            claim,
            done,
            tenant_hash=held.place.tenant_hash,
            delay_s=_HELD_BASE_S,
            within_s=_STATEMENT_S,
        )

    async def _postpone(self, claim: Claim, done: Done, *, tries: int, delay_s: float) -> None:
        await replays.postpone(self._connection, claim, done, tries=tries, delay_s=delay_s, within_s=_STATEMENT_S)


def _done(delivered: Delivered, after: replays.Place) -> Done:
    return Done(after=after, published=delivered.published, failed=delivered.failed, problem=delivered.problem)


@contextlib.asynccontextmanager
async def _connected(url: str) -> AsyncIterator[store.Connection]:
    connection = await store.connect(url, store.FIXED_PLANS, connect_s=_CONNECT_S, statement_s=_STATEMENT_S)
    try:
        await guard.check(connection, within_s=_CONNECT_S)
        yield connection
    finally:
        await store.close(connection)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
