"""The relay's settings: read once, in ``relay.cli``, from ``OUTBOX_RELAY_*`` and the names all processes share."""

from typing import Annotated, Final

from pydantic import BaseModel, Field, model_validator

from outbox.shell.settings import (
    Address,
    BrokerName,
    DatabaseUrl,
    KindOfQueue,
    LogFormat,
    LogLevel,
    Port,
    QueuesUrl,
    RabbitUrl,
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
    """One field per setting; ``window`` is ``OUTBOX_RELAY_WINDOW``."""

    database_url: DatabaseUrl
    broker: BrokerName = "rabbitmq"
    rabbitmq_url: RabbitUrl = None
    broker_database_url: QueuesUrl = None
    log_level: LogLevel = "info"
    log_format: LogFormat = "auto"
    queue_kind: KindOfQueue = "quorum"
    window: Annotated[int, Field(ge=1, le=100_000)] = _DEFAULTS.window
    cap: Annotated[int, Field(ge=1, le=100_000)] = _DEFAULTS.cap
    chunk: Annotated[int, Field(ge=1, le=10_000)] = _DEFAULTS.chunk
    lease_s: Annotated[float, Field(ge=3, le=600)] = _DEFAULTS.lease_s
    persist_ms: Annotated[int, Field(ge=10, le=5_000)] = int(_DEFAULTS.persist_s * _MS)
    confirm_s: Annotated[float, Field(ge=1, le=600)] = _DEFAULTS.confirm_s
    busy_poll_ms: Annotated[int, Field(ge=1, le=1_000)] = int(_DEFAULTS.busy_poll_s * _MS)
    idle_poll_ms: Annotated[int, Field(ge=1, le=10_000)] = int(_DEFAULTS.idle_poll_s * _MS)
    listen: bool = False
    drain_s: Annotated[float, Field(ge=0, le=60)] = _DEFAULTS.drain_s
    attempts: Annotated[int, Field(ge=1, le=1_000)] = _DEFAULTS.attempts
    body_bytes_max: Annotated[int, Field(ge=1024, le=512 * 1024 * 1024)] = DEFAULT_BODY_BYTES_MAX
    retention_days: Annotated[float, Field(ge=0, le=365)] = 7.0
    ordering_retention_days: Annotated[float, Field(ge=0, le=3_650)] = 30.0
    janitor_s: Annotated[float, Field(ge=1, le=86_400)] = 300.0
    start_s: Annotated[float, Field(ge=0, le=3_600)] = 10.0
    """How long database and broker may be unreachable when the process starts; later it waits for them."""
    health_host: Address = "127.0.0.1"
    """The address of health and metrics, which ask for no password: 0.0.0.0 is for networks that keep others out."""
    health_port: Port = 8081

    @model_validator(mode="after")
    def _polls_in_order(self) -> "RelaySettings":
        if self.busy_poll_ms > self.idle_poll_ms:
            raise ValueError(
                f"{PREFIX}BUSY_POLL_MS: want at most {PREFIX}IDLE_POLL_MS, {self.idle_poll_ms}, got {self.busy_poll_ms}"
            )
        return self

    @model_validator(mode="after")
    def _counters_outlive_events(self) -> "RelaySettings":
        least = self.retention_days + _HORIZON_DAYS
        if self.ordering_retention_days < least:
            raise ValueError(
                f"{PREFIX}ORDERING_RETENTION_DAYS: want at least {PREFIX}RETENTION_DAYS and the consumers' horizon of"
                f" {_HORIZON_DAYS:g} days together, {least:g}, got {self.ordering_retention_days:g}"
            )
        return self

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
