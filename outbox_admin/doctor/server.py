"""The server itself: a standby, a role above row-level security, a clock that is off."""

from typing import Final

from outbox_admin.doctor.facts import Management, Server
from outbox_admin.doctor.finding import Finding, ok, problem, warning

_CLOCK_WARN_S: Final = 1.0
#: Deliveries from further ahead than five minutes are refused.
_CLOCK_MAX_S: Final = 60.0
#: HTTP's dates are whole seconds.
_HTTP_ERROR_S: Final = 1.0


def writable(server: Server) -> list[Finding]:
    """Whether we can write to it."""
    if server.is_standby:
        return [problem("primary", f"{server.address} is a standby", "set DATABASE_URL to the primary")]
    if server.is_read_only:
        undo = "ALTER DATABASE ... RESET default_transaction_read_only, or of the role"
        return [problem("primary", f"{server.address} lets transactions only read", undo)]
    return [ok("primary", "the server is a primary and takes writes")]


def role(server: Server) -> list[Finding]:
    """Whether row-level security holds for the role."""
    why = "a superuser" if server.is_superuser else "BYPASSRLS" if server.bypasses_rls else ""
    if not why:
        return [ok("role", f"{server.role} is no superuser and does not bypass row-level security")]
    says = f"{server.role} is {why}: row-level security does nothing for it"
    remedy = "connect as a role of its own: docs/how-to/roles.md"
    if server.policies:
        return [
            problem("role", f"{says}, and {server.policies} policies of the app's tables stand there for it", remedy)
        ]
    return [warning("role", says, remedy)]


def clock(server: Server) -> list[Finding]:
    """How far its clock is from this host's."""
    return _clock("PostgreSQL", server.clock_s, error_s=server.error_s)


def broker_clock(management: Management) -> list[Finding]:
    """How far the broker's clock is from this host's."""
    return _clock("RabbitMQ", management.clock_s, error_s=_HTTP_ERROR_S)


def _clock(what: str, ahead_s: float, *, error_s: float) -> list[Finding]:
    off_s = max(0.0, abs(ahead_s) - error_s)
    says = f"{what}'s clock is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this host's"
    remedy = "let chrony or systemd-timesyncd keep time on both hosts"
    if off_s > _CLOCK_MAX_S:
        return [problem("clock", says, remedy)]
    if off_s > _CLOCK_WARN_S:
        return [warning("clock", says, remedy)]
    return [ok("clock", f"{what} and this host agree on the time, to {max(0.001, error_s, abs(ahead_s)):.2g} s")]
