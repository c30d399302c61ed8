"""What a check found."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is: a problem makes the command fail, a warning does not."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line: *says* what is so, *remedy* the exact command or setting that mends it; empty where all is well."""

    subject: str
    level: Level
    says: str
    remedy: str = ""


def ok(subject: str, says: str) -> Finding:
    """All is well."""
    return Finding(subject=subject, level=Level.OK, says=says)


def warning(subject: str, says: str, remedy: str) -> Finding:
    """It works, and somebody should know."""
    return Finding(subject=subject, level=Level.WARNING, says=says, remedy=remedy)


def problem(subject: str, says: str, remedy: str) -> Finding:
    """It does not work, or will not for long."""
    return Finding(subject=subject, level=Level.PROBLEM, says=says, remedy=remedy)
