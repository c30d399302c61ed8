"""The whole loop on a real database, attacked: nothing committed is lost, nothing rolled back appears, order holds.

``RELAY_CHAOS_SECONDS`` and ``RELAY_CHAOS_SEED`` make it longer, or another run.
"""

import os
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest

from migrations.ring import Ring
from outbox_admin import migrate
from relay.decide.pieces import Part
from relay.log import heavy, positions, ringlog
from relay.log.rows import EVENT_COLUMNS
from tests.integration.relay.chaos import SLOTS, Verdict, run_chaos

PROVED = (
    *("crashes", "freezes", "cuts", "joins", "leaves"),
    *("takeovers", "given_up", "broker_losses", "resent", "set_aside", "surveys", "slot truncated"),
)
SECONDS = float(os.environ.get("RELAY_CHAOS_SECONDS", "12"))
SEED = int(os.environ.get("RELAY_CHAOS_SEED", "1"))


@pytest.fixture
def small_ring(database: str) -> str:
    migrate.upgrade(database, chains=("outbox",), ring=Ring(slots=SLOTS, slot_seconds=1))
    return database


@pytest.mark.timeout(SECONDS + 180)
def test_crashes_cuts_frozen_owners_and_buckets_that_move_lose_nothing_and_keep_order(
    small_ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    around, calls = heavy.parts_around, count()

    async def every_other(*arguments: Any) -> Sequence[Part] | None:
        """Large windows are read in both ways."""
        return await around(*arguments) if next(calls) % 2 else None

    monkeypatch.setattr(heavy, "parts_around", every_other)
    verdict = run_chaos(small_ring, seed=SEED, seconds=SECONDS)
    print(verdict)
    assert verdict.is_clean, verdict
    happened = verdict.events
    assert verdict.committed > 100 * SECONDS / 2, verdict
    for what in PROVED:
        assert happened[what], f"nothing was proved of {what}: {verdict}"


# ------------------------------------------------------------------ the checker convicts what it must


def _without_running_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    # What was running in the last snapshot and has committed since is forgotten.
    for name in ("_WINDOW", "_SURVEY"):
        whole = getattr(ringlog, name)
        assert "xid = ANY (ARRAY(" in whole
        monkeypatch.setattr(
            ringlog, name, whole.replace("WHERE xid = ANY (ARRAY(", "WHERE false AND xid = ANY (ARRAY(")
        )


def _without_the_first_of_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    # A heavy tenant's range begins one row late.
    assert heavy._SPANS.count("min(b.seq) - 1") == 1
    monkeypatch.setattr(heavy, "_SPANS", heavy._SPANS.replace("min(b.seq) - 1", "min(b.seq)"))


def _without_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    async def write_nothing(*_: object) -> None:
        """A base then says of lanes that are behind that they are published."""

    monkeypatch.setattr(positions, "_write_streams", write_nothing)


def _in_transaction_order(monkeypatch: pytest.MonkeyPatch) -> None:
    # An aggregate's later transaction may have the lower number.
    whole = ringlog._WINDOW
    planted = whole.replace("        SELECT e.seq, e.bucket,", "        SELECT e.xid, e.seq, e.bucket,")
    planted = planted.replace(
        "       e.*\nFROM s CROSS", "       e.seq, e.bucket, e.tenant_hash, e.slot, " + EVENT_COLUMNS + "\nFROM s CROSS"
    )
    planted = planted.replace("ORDER BY e.seq", "ORDER BY e.xid, e.seq")
    assert planted.count("e.xid") == 2
    # The snapshot comes with the first row: that is another one now.
    with_snapshot = "CASE WHEN e.seq IS NULL OR e.seq = t.first_seq THEN s.hi::text END"
    assert planted.count(with_snapshot) == 1
    planted = planted.replace(with_snapshot, "s.hi::text")
    monkeypatch.setattr(ringlog, "_WINDOW", planted)


@pytest.mark.parametrize(
    ("plant", "is_convicted", "tenants"),
    [
        (_without_running_transactions, lambda verdict: verdict.lost > 0, 16),
        (_without_the_first_of_a_range, lambda verdict: verdict.lost > 0, 16),
        (_without_streams, lambda verdict: verdict.lost > 0, 16),
        (_in_transaction_order, lambda verdict: not verdict.is_clean, 5),
    ],
)
def test_a_planted_bug_is_convicted(
    small_ring: str,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    is_convicted: Callable[[Verdict], bool],
    tenants: int,
) -> None:
    plant(monkeypatch)
    verdict = run_chaos(small_ring, seed=SEED, seconds=8, settle_s=5, writers=8, tenants=tenants)
    print(verdict)
    assert is_convicted(verdict), verdict
