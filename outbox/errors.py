"""Every error this project raises on purpose.

    OutboxError
    ├── ConfigError              a setting is missing or wrong; the process will not start
    ├── InvalidEvent             the app built an event that can never be sent
    │   ├── PayloadTooLarge
    │   └── TenantRequired
    ├── IdempotencyConflict      the same idempotency key came with another payload
    ├── TransientError           the same call may succeed later
    │   ├── StoreUnavailable
    │   │   └── StoreRefused     the database does not let this user in, or there is none of this name
    │   ├── BrokerUnavailable
    │   │   └── BrokerRefused    the broker does not let this user in, or do what it must
    │   └── LeaseLost
    └── PermanentError           the same call will fail again
        ├── Unreadable           a message that is not one of ours, or is damaged
        ├── SchemaMissing        the database has not been migrated, or is of another version
        ├── WrongDatabase        stored positions belong to another cluster, timeline or database
        │   └── IsStandby        this is a standby, which may be so for a moment only
        └── QueueMismatch        a queue exists with other arguments

Catch by branch, never by leaf. A message is one sentence: what was wanted and what came.
"""


class OutboxError(Exception):
    """Root of every error raised on purpose."""


class ConfigError(OutboxError):
    """A setting is missing or out of range."""


class InvalidEvent(OutboxError):
    """The event can never be sent as it is."""


class PayloadTooLarge(InvalidEvent):
    """The payload is over the size limit."""


class TenantRequired(InvalidEvent):
    """No tenant was given, by argument, session or context."""


class IdempotencyConflict(OutboxError):
    """An idempotency key was used again with another payload."""


class TransientError(OutboxError):
    """The same call may succeed later."""


class StoreUnavailable(TransientError):
    """The database cannot be reached, or refuses work for now."""


class StoreRefused(StoreUnavailable):
    """The database does not let this user in, or there is none of this name; to a running process an outage."""


class BrokerUnavailable(TransientError):
    """The broker cannot be reached, or the connection was lost."""


class BrokerRefused(BrokerUnavailable):
    """The broker does not let this user in, or do what it must; to a running process an outage."""


class LeaseLost(TransientError):
    """Another process owns what this one thought it owned."""


class PermanentError(OutboxError):
    """The same call will fail again."""


class Unreadable(PermanentError):
    """A message that is not one of ours, or is damaged."""


class SchemaMissing(PermanentError):
    """The database has not been migrated, or is of another version."""


class WrongDatabase(PermanentError):
    """Stored positions belong to another cluster, timeline or database."""


class IsStandby(WrongDatabase):
    """This is a standby, which may be so for a moment only: an address leads elsewhere during a failover."""


class QueueMismatch(PermanentError):
    """A queue exists with other arguments than ours."""
