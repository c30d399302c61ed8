"""The numbers that bound what a relay does at once, and how long it waits."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Defaults that hold; ``OUTBOX_RELAY_*`` settings replace them."""

    window: int = 2_000
    """Events published and not yet persisted, at most: as many may come twice after a crash."""
    cap: int = 1_000
    """Events of one window that are read together with their bodies; a larger window is read lane by lane."""
    cap_bytes: int = 16 * 1024 * 1024
    chunk: int = 200
    """Events of one lane in one turn."""
    chunk_bytes: int = 1024 * 1024
    batch: int = 500
    """Events handed to the broker's connection at once."""
    batch_bytes: int = 4 * 1024 * 1024
    lease_s: float = 15.0
    persist_s: float = 0.05
    confirm_s: float = 15.0
    """How long a confirm may take before its lane, or the connection, counts as faulty."""
    busy_poll_s: float = 0.005
    idle_poll_s: float = 1.0
    """With leases and all else that an idle relay asks, it asks less than twice a second."""
    survey_s: float = 600.0
    """How long the reading of a window too large to bring along may take; nothing else waits for it."""
    drain_s: float = 5.0
    """How long a planned shutdown waits for confirms."""
    attempts: int = 10
    """Tries to publish one event that the broker refuses, before it is dead. An outage counts as none."""
    announce_every_s: float = 600.0

    @property
    def wait_s(self) -> float:
        """How long any single wait may take: leases are renewed at a third, and a wait must not outlast that."""
        return self.lease_s / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """How long things are kept, and how often the janitor looks through them."""

    retention_s: float
    ordering_retention_s: float
    every_s: float
