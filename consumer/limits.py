"""The numbers that bound what a consumer does at once, and how long it waits."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeAlias

from consumer.decide.limit import Cap, Limit, Rate
from outbox.event import Tier

ShareBy: TypeAlias = Literal["time", "events"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Defaults that hold; ``OUTBOX_CONSUMER_*`` settings replace them."""

    slots: int = 10
    """Handlers that run at once in this process."""
    reserved_percent: int = 30
    """The part of the slots that only interactive work uses."""
    tiers: tuple[Tier, ...] = tuple(Tier)
    """Those that this process serves, all by default."""
    share_by: ShareBy = "time"
    """What tenants and tiers have equal shares of: the time that handlers take, or their number."""
    tenant_cap: int | None = None
    """Events of one tenant that may run at once in this process, interactive ones apart."""
    tenant_fleet_cap: int | None = None
    """The same in all processes of the group together."""
    tenant_per_s: float | None = None
    """Events of one tenant that may start per second in this process, interactive ones apart."""
    prefetch: int = 2
    """Deliveries of one lane that wait here; the rest of a backlog waits in the broker."""
    horizon: timedelta = timedelta(days=14)
    """How far back the ledger can tell a duplicate."""
    payload_bytes_max: int = 1024 * 1024
    result_bytes_max: int = 16 * 1024
    """What one handler may return of one event, as JSON."""
    result_days: float = 7.0
    """How long that is kept."""
    transaction_warn_s: float = 30.0
    """A handler whose transaction is open for longer is told of."""
    lease_s: float = 15.0
    drain_s: float = 60.0
    """How long a planned shutdown waits for the handlers that run."""
    work_per_lane: int = 10
    """Due work rows of one lane in hand, at most."""
    work_total: int = 100
    isolated_max: int = 2
    """Processes for handlers with ``isolation="process"``, each of which handles one event at a time."""
    abandoned_max: int = 5
    """Handlers that went on past their deadline and still run; with more the process drains and ends."""
    suspect_s: float = 120.0
    """How long a process that runs a single suspect may take, where the handlers' deadlines do not ask for longer."""
    replay_unknown_per_s: int = 50
    """Dead letters of a version, or type, that is known now, replayed by themselves each second; 0 is none."""
    replay_unknown_type: timedelta = timedelta(hours=24)
    """How old such a letter may be if its type was unknown; of an unknown version any age will do."""
    version: str = ""
    """No bound: the build that runs, as whoever deploys calls it."""

    def of_tenants(self) -> list[tuple[str | None, Limit]]:
        """What holds for each tenant, whatever its types."""
        found: list[Limit] = []
        if self.tenant_cap is not None:
            found.append(Cap(self.tenant_cap, per="tenant"))
        if self.tenant_fleet_cap is not None:
            found.append(Cap(self.tenant_fleet_cap, per="tenant", scope="fleet"))
        if self.tenant_per_s is not None:
            found.append(Rate(self.tenant_per_s, per="tenant"))
        return [(None, limit) for limit in found]
