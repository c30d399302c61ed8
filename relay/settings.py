"""The relay's settings: read once, in ``relay.cli``."""

from typing import Annotated, Final

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from outbox.shell.setting_types import (
    Address,
    Broker,
    DatabaseUrl,
    KindOfQueue,
    LogFormat,
    LogLevel,
    Port,
    QueuesUrl,
    RabbitUrl,
    StartS,
)
from relay.limits import Limits, Upkeep
from relay.rabbitmq.frames import DEFAULT_BODY_BYTES_MAX

PREFIX: Final = "OUTBOX_RELAY_"
_DEFAULTS: Final = Limits()
_MS: Final = 1000.0
_DAY_S: Final = 86_400.0
# The consumers' own default. A key forgotten while they still wait for an event of it would begin anew too soon.
_HORIZON_DAYS: Final = 14.0


class RelaySettings(BaseModel):
    """One field per setting; ``window`` is ``OUTBOX_RELAY_WINDOW``. What is wrong together, the later field refuses."""

    database_url: Annotated[
        DatabaseUrl, Field(description="PostgreSQL with the `outbox` tables: a primary, never a standby.")
    ]
    broker: Annotated[Broker, Field(json_schema_extra={"option": True})] = "rabbitmq"
    rabbitmq_url: RabbitUrl = None
    broker_database_url: QueuesUrl = None
    log_level: LogLevel = "info"
    log_format: LogFormat = "auto"
    queue_kind: KindOfQueue = "quorum"
    window: int = Field(
        default=_DEFAULTS.window,
        ge=1,
        le=100_000,
        description="Events published and not yet noted as such; at most so many come twice after a crash.",
    )
    cap: int = Field(
        default=_DEFAULTS.cap,
        ge=1,
        le=100_000,
        description="Events read together with their payloads; a larger commit is read tenant by tenant.",
    )
    chunk: int = Field(default=_DEFAULTS.chunk, ge=1, le=10_000, description="Events of one tenant in one turn.")
    lease_s: float = Field(
        default=_DEFAULTS.lease_s,
        ge=3,
        le=600,
        description="Seconds until a dead relay's buckets are taken over; renewed at a third of it.",
    )
    persist_ms: int = Field(
        default=int(_DEFAULTS.persist_s * _MS),
        ge=10,
        le=5_000,
        description="How often positions are stored, in milliseconds.",
    )
    confirm_s: float = Field(
        default=_DEFAULTS.confirm_s,
        ge=1,
        le=600,
        description="Seconds that a confirm may take before its lane, or the connection, counts as faulty.",
    )
    busy_poll_ms: int = Field(
        default=int(_DEFAULTS.busy_poll_s * _MS),
        ge=1,
        le=1_000,
        description="How often the log is read while events come, in milliseconds.",
    )
    idle_poll_ms: int = Field(
        default=int(_DEFAULTS.idle_poll_s * _MS),
        ge=1,
        le=10_000,
        validate_default=True,
        description="How often it is read when none come, in milliseconds; never more often than while they come.",
    )
    listen: bool = Field(
        default=False,
        description="Read the log at once when an app says that it has committed, on one more database connection.",
    )
    drain_s: float = Field(
        default=_DEFAULTS.drain_s, ge=0, le=60, description="Seconds that a planned stop waits for confirms."
    )
    attempts: int = Field(
        default=_DEFAULTS.attempts,
        ge=1,
        le=1_000,
        description="Tries to publish an event that the broker refuses, before it is dead; an outage counts as none.",
    )
    body_bytes_max: int = Field(
        default=DEFAULT_BODY_BYTES_MAX,
        ge=1024,
        le=512 * 1024 * 1024,
        description="The broker's own limit on a message, in bytes.",
    )
    retention_days: float = Field(
        default=7.0,
        ge=0,
        le=365,
        description="How long published events stay in the log, at least. The ring of 16 slots of 12 hours holds 7"
        " days, and with it more is refused.",
    )
    ordering_retention_days: float = Field(
        default=30.0,
        ge=0,
        le=3_650,
        validate_default=True,
        description="How long an unused ordering key's counter is kept: at least the retention and 14 days, the"
        " consumers' horizon; more where theirs is longer.",
    )
    janitor_s: float = Field(
        default=300.0,
        ge=1,
        le=86_400,
        description="How often old events, keys and counters are looked for, in seconds.",
    )
    start_s: StartS = 10.0
    health_host: Address = "127.0.0.1"
    health_port: Port = 8081

    @field_validator("idle_poll_ms")
    @classmethod
    def _polls_in_order(cls, value: int, info: ValidationInfo) -> int:
        busy: int = info.data.get("busy_poll_ms", 0)
        if busy > value:
            raise ValueError(f"want at least {PREFIX}BUSY_POLL_MS, {busy}, got {value}")
        return value

    @field_validator("ordering_retention_days")
    @classmethod
    def _counters_outlive_events(cls, value: float, info: ValidationInfo) -> float:
        least = info.data.get("retention_days", 0.0) + _HORIZON_DAYS
        if value < least:
            raise ValueError(
                f"want at least {PREFIX}RETENTION_DAYS and the consumers' horizon of"
                f" {_HORIZON_DAYS:g} days together, {least:g}, got {value:g}"
            )
        return value

    @property
    def limits(self) -> Limits:
        """What the engine works within."""
        return Limits(
            window=self.window,
            cap=self.cap,
            chunk=self.chunk,
            lease_s=self.lease_s,
            persist_s=self.persist_ms / _MS,
            confirm_s=self.confirm_s,
            busy_poll_s=self.busy_poll_ms / _MS,
            idle_poll_s=self.idle_poll_ms / _MS,
            drain_s=self.drain_s,
            attempts=self.attempts,
        )

    @property
    def retention_s(self) -> float:
        """How long published events are kept."""
        return self.retention_days * _DAY_S

    @property
    def upkeep(self) -> Upkeep:
        """What the janitor keeps, and for how long."""
        return Upkeep(
            retention_s=self.retention_s,
            ordering_retention_s=self.ordering_retention_days * _DAY_S,
            every_s=self.janitor_s,
        )


class StatusSettings(BaseModel):
    """What ``status`` needs: it asks the database alone."""

    database_url: DatabaseUrl
