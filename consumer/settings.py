"""The consumer's settings: read once, in ``consumer.cli``."""

from datetime import timedelta
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, SecretStr

from consumer.event_loop import LoopName, check_loop
from consumer.limits import Limits, ShareBy
from consumer.web_address import check_url
from outbox.event import Tier
from outbox.shell.setting_types import (
    Address,
    Broker,
    BrokerUrl,
    DatabaseUrl,
    KindOfQueue,
    LogFormat,
    LogLevel,
    Port,
    QueuesUrl,
    RabbitUrl,
    StartS,
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


def _joined(value: object) -> object:
    """A list of names, as a TOML file may write it, as the text that the environment has to use."""
    return ",".join(map(str, value)) if isinstance(value, list) else value


class ConsumerSettings(BaseModel):
    """One field per setting; ``slots`` is ``OUTBOX_CONSUMER_SLOTS``."""

    database_url: Annotated[
        DatabaseUrl, Field(description="PostgreSQL with the `consumer` tables, where the handlers write too.")
    ]
    broker: Annotated[Broker, Field(json_schema_extra={"option": True})] = "rabbitmq"
    rabbitmq_url: RabbitUrl = None
    broker_database_url: QueuesUrl = None
    log_level: LogLevel = "info"
    log_format: LogFormat = "auto"
    queue_kind: KindOfQueue = "quorum"
    processes: int = Field(
        default=1,
        ge=1,
        le=64,
        json_schema_extra={"option": True},
        description="Worker processes, each with all that follows of its own; one that dies is replaced.",
    )
    silent_s: float = Field(
        default=120.0,
        ge=3,
        le=86_400,
        description="One of several processes that reports nothing for so many seconds is killed and replaced.",
    )
    tiers: Annotated[str, BeforeValidator(_joined), AfterValidator(_check_tiers)] = Field(
        default=ALL_TIERS,
        examples=[f"some of {ALL_TIERS}"],
        json_schema_extra={"option": True},
        description="The tiers that this process serves, for workers of their own.",
    )
    slots: int = Field(
        default=_DEFAULTS.slots,
        ge=2,
        le=1_000,
        description="Handlers that run at once, each with a database connection.",
    )
    reserved_percent: int = Field(
        default=_DEFAULTS.reserved_percent,
        ge=1,
        le=90,
        description="The part of the slots, rounded up, that runs interactive work only.",
    )
    share_by: ShareBy = Field(
        default=_DEFAULTS.share_by,
        description="What tenants have equal shares of, and tiers their weights: `time` that handlers run, or"
        " number of `events`.",
    )
    tenant_cap: int | None = Field(
        default=None,
        ge=1,
        description="Events of one tenant that run at once in this process, interactive ones apart.",
    )
    tenant_fleet_cap: int | None = Field(
        default=None,
        ge=1,
        description="The same in all processes of the group together; give all of them the same.",
    )
    tenant_per_s: float | None = Field(
        default=None,
        gt=0,
        description="Events of one tenant that start per second in this process, interactive ones apart.",
    )
    prefetch: int = Field(
        default=_DEFAULTS.prefetch,
        ge=1,
        le=100,
        description="Deliveries of one lane that wait in the process.",
    )
    horizon_days: float = Field(
        default=_DEFAULTS.horizon / timedelta(days=1),
        gt=0,
        le=365,
        description="How far back the ledger knows a duplicate; at least the log's retention.",
    )
    payload_bytes_max: int = Field(
        default=_DEFAULTS.payload_bytes_max,
        ge=1024,
        le=512 * 1024 * 1024,
        description="A larger payload becomes a dead letter unread.",
    )
    result_bytes_max: int = Field(
        default=_DEFAULTS.result_bytes_max,
        ge=64,
        le=1024 * 1024,
        description="What a handler may return of one event to be kept, as JSON, in bytes; a larger one is a failure.",
    )
    result_days: float = Field(
        default=_DEFAULTS.result_days,
        gt=0,
        le=3_650,
        description="How long that is kept.",
    )
    transaction_warn_s: float = Field(
        default=_DEFAULTS.transaction_warn_s,
        gt=0,
        le=86_400,
        description="A handler whose transaction is open for more seconds is logged, once, and counted.",
    )
    lease_s: float = Field(
        default=_DEFAULTS.lease_s,
        ge=3,
        le=600,
        description="Seconds until a dead process's rows are free for others.",
    )
    drain_s: float = Field(
        default=_DEFAULTS.drain_s,
        ge=0,
        le=3_600,
        description="Seconds that a planned stop waits for running handlers.",
    )
    work_per_lane: int = Field(
        default=_DEFAULTS.work_per_lane,
        ge=1,
        le=1_000,
        description="Due retries of one lane in hand at once.",
    )
    work_total: int = Field(
        default=_DEFAULTS.work_total,
        ge=1,
        le=10_000,
        description="Due retries in hand at once.",
    )
    isolated_max: int = Field(
        default=_DEFAULTS.isolated_max,
        ge=1,
        le=256,
        description='Processes for handlers with `isolation="process"`, each for one event at a time; started'
        " when first needed.",
    )
    abandoned_max: int = Field(
        default=_DEFAULTS.abandoned_max,
        ge=0,
        le=10_000,
        description="Handlers that went on past their deadline and still run; with more the process drains and"
        " ends with 75, to be started again.",
    )
    suspect_s: float = Field(
        default=_DEFAULTS.suspect_s,
        ge=1,
        le=86_400,
        description="Seconds that a process which runs a single suspect may take; where the deadlines of a type's"
        " handlers add up to more, that.",
    )
    suspect_memory_mb: int = Field(
        default=1_024,
        ge=0,
        le=1_048_576,
        description="What it may take beside what it takes at its start, in MiB, on Linux; 0 is no limit.",
    )
    replay_unknown_per_s: int = Field(
        default=_DEFAULTS.replay_unknown_per_s,
        ge=0,
        le=1_000,
        description="Dead letters `unknown_version` and `unknown_type` that are replayed by themselves each"
        " second, all processes together, once code here knows them; 0: only by hand.",
    )
    replay_unknown_type_h: float = Field(
        default=_DEFAULTS.replay_unknown_type / timedelta(hours=1),
        ge=0,
        le=8_760,
        description="Hours after which a dead letter `unknown_type` is replayed only by hand; 0: always.",
    )
    loop: Annotated[LoopName, AfterValidator(check_loop)] = Field(
        default="auto",
        description="The event loop, handlers' too: `uvloop`, Python's own `asyncio`, or `auto`: uvloop where it is"
        " installed.",
    )
    start_s: StartS = 10.0
    health_host: Address = "127.0.0.1"
    health_port: Port = 8082
    version: str | None = Field(
        default=None,
        max_length=100,
        description="The build that runs, as you call it; `status` shows it, `verify --version` asks for it.",
    )
    alert_url: Annotated[SecretStr, AfterValidator(_alert_url)] | None = Field(
        default=None,
        examples=["http://host/path or https://host/path"],
        description="Alerts are POSTed there as JSON, beside the log; no payload in them, no redirect followed.",
    )

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
    broker: Broker = "rabbitmq"
    rabbitmq_url: BrokerUrl | None = None
    broker_database_url: QueuesUrl = None
