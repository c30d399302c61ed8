"""The consumer's settings: read once, in ``consumer.cli``, from ``OUTBOX_CONSUMER_*`` and what all processes share."""

from datetime import timedelta
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, Field, SecretStr

from consumer.limits import Limits, ShareBy
from consumer.webhook import check_url
from outbox.event import Tier
from outbox.shell.settings import (
    Address,
    BrokerName,
    BrokerUrl,
    DatabaseUrl,
    KindOfQueue,
    LogFormat,
    LogLevel,
    Port,
    QueuesUrl,
    RabbitUrl,
)

PREFIX: Final = "OUTBOX_CONSUMER_"
_DEFAULTS: Final = Limits()
_TIERS: Final = {tier.label: tier for tier in Tier}
ALL_TIERS: Final = ",".join(_TIERS)


def _alert_url(value: SecretStr) -> SecretStr:
    check_url(value.get_secret_value())
    return value


def read_tiers(text: str) -> tuple[Tier, ...]:
    """Return the tiers that *text* names, the most urgent first. Raises ValueError: one sentence says what is wrong."""
    names = [name.strip() for name in text.split(",")]
    if wrong := [name for name in names if name not in _TIERS]:
        raise ValueError(f"want some of {ALL_TIERS}, got {wrong[0][:40]!r}")
    return tuple(tier for name, tier in _TIERS.items() if name in names)


def _check_tiers(text: str) -> str:
    read_tiers(text)
    return text


class ConsumerSettings(BaseModel):
    """One field per setting; ``slots`` is ``OUTBOX_CONSUMER_SLOTS``."""

    database_url: DatabaseUrl
    broker: BrokerName = "rabbitmq"
    rabbitmq_url: RabbitUrl = None
    broker_database_url: QueuesUrl = None
    log_level: LogLevel = "info"
    log_format: LogFormat = "auto"
    queue_kind: KindOfQueue = "quorum"
    processes: Annotated[int, Field(ge=1, le=64)] = 1
    silent_s: Annotated[float, Field(ge=3, le=86_400)] = 120.0
    """How long one of several processes may report nothing before it is killed and replaced."""
    tiers: Annotated[str, AfterValidator(_check_tiers)] = ALL_TIERS
    slots: Annotated[int, Field(ge=2, le=1_000)] = _DEFAULTS.slots
    reserved_percent: Annotated[int, Field(ge=1, le=90)] = _DEFAULTS.reserved_percent
    share_by: ShareBy = _DEFAULTS.share_by
    tenant_cap: Annotated[int, Field(ge=1)] | None = None
    tenant_fleet_cap: Annotated[int, Field(ge=1)] | None = None
    tenant_per_s: Annotated[float, Field(gt=0)] | None = None
    prefetch: Annotated[int, Field(ge=1, le=100)] = _DEFAULTS.prefetch
    horizon_days: Annotated[float, Field(gt=0, le=365)] = _DEFAULTS.horizon / timedelta(days=1)
    payload_bytes_max: Annotated[int, Field(ge=1024, le=512 * 1024 * 1024)] = _DEFAULTS.payload_bytes_max
    result_bytes_max: Annotated[int, Field(ge=64, le=1024 * 1024)] = _DEFAULTS.result_bytes_max
    result_days: Annotated[float, Field(gt=0, le=3_650)] = _DEFAULTS.result_days
    transaction_warn_s: Annotated[float, Field(gt=0, le=86_400)] = _DEFAULTS.transaction_warn_s
    lease_s: Annotated[float, Field(ge=3, le=600)] = _DEFAULTS.lease_s
    drain_s: Annotated[float, Field(ge=0, le=3_600)] = _DEFAULTS.drain_s
    work_per_lane: Annotated[int, Field(ge=1, le=1_000)] = _DEFAULTS.work_per_lane
    work_total: Annotated[int, Field(ge=1, le=10_000)] = _DEFAULTS.work_total
    isolated_max: Annotated[int, Field(ge=1, le=256)] = _DEFAULTS.isolated_max
    abandoned_max: Annotated[int, Field(ge=0, le=10_000)] = _DEFAULTS.abandoned_max
    suspect_s: Annotated[float, Field(ge=1, le=86_400)] = _DEFAULTS.suspect_s
    suspect_memory_mb: Annotated[int, Field(ge=0, le=1_048_576)] = 1_024
    """What a process that runs a single suspect may take beside what it takes at its start; 0 is no limit."""
    replay_unknown_per_s: Annotated[int, Field(ge=0, le=1_000)] = _DEFAULTS.replay_unknown_per_s
    replay_unknown_type_h: Annotated[float, Field(ge=0, le=8_760)] = _DEFAULTS.replay_unknown_type / timedelta(hours=1)
    start_s: Annotated[float, Field(ge=0, le=3_600)] = 10.0
    """How long database and broker may be unreachable when the process starts; later it waits for them."""
    health_host: Address = "127.0.0.1"
    """The address of health and metrics, which ask for no password: 0.0.0.0 is for networks that keep others out."""
    health_port: Port = 8082
    version: Annotated[str, Field(max_length=100)] | None = None
    """The build that runs, as whoever deploys calls it; status and verify tell processes apart by it."""
    alert_url: Annotated[SecretStr, AfterValidator(_alert_url)] | None = None
    """Where alerts are POSTed to, beside the log."""

    @property
    def limits(self) -> Limits:
        """What the engine works within."""
        return Limits(
            slots=self.slots,
            reserved_percent=self.reserved_percent,
            tiers=read_tiers(self.tiers),
            share_by=self.share_by,
            tenant_cap=self.tenant_cap,
            tenant_fleet_cap=self.tenant_fleet_cap,
            tenant_per_s=self.tenant_per_s,
            prefetch=self.prefetch,
            horizon=timedelta(days=self.horizon_days),
            payload_bytes_max=self.payload_bytes_max,
            result_bytes_max=self.result_bytes_max,
            result_days=self.result_days,
            transaction_warn_s=self.transaction_warn_s,
            lease_s=self.lease_s,
            drain_s=self.drain_s,
            work_per_lane=self.work_per_lane,
            work_total=self.work_total,
            version=self.version or "",
            isolated_max=self.isolated_max,
            abandoned_max=self.abandoned_max,
            suspect_s=self.suspect_s,
            replay_unknown_per_s=self.replay_unknown_per_s,
            replay_unknown_type=timedelta(hours=self.replay_unknown_type_h),
        )


class StatusSettings(BaseModel):
    """What ``status`` needs; without a broker's address it tells of the database alone."""

    database_url: DatabaseUrl
    broker: BrokerName = "rabbitmq"
    rabbitmq_url: BrokerUrl | None = None
    broker_database_url: QueuesUrl = None
