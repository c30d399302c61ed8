"""What is told of a failure, in dead letters, work rows and logs: made safe, bounded, and never a payload."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """*fingerprint* is the same for failures that are alike; *trace* is for those who may read it."""

    message: str
    fingerprint: str
    error_class: str | None = None
    trace: str | None = None


def report_of(what: BaseException | str) -> Report:
    """Return what may be told of *what*: an error, or a sentence."""
    if isinstance(what, BaseException):
        return Report(message=type(what).__name__, fingerprint=type(what).__name__, error_class=type(what).__name__)
    return Report(message=what[:500], fingerprint="sentence")
