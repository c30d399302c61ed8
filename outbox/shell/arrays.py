"""Arrays as PostgreSQL reads them, for statements with dozens of rows: the driver would look at every element twice."""

from collections.abc import Iterable
from uuid import UUID


def uuids(values: Iterable[UUID]) -> str:
    """For a parameter that is cast to ``uuid[]``."""
    return "{" + ",".join([value.hex for value in values]) + "}"


def numbers(values: Iterable[int]) -> str:
    """For a parameter that is cast to an array of whole numbers."""
    return "{" + ",".join(map(str, values)) + "}"


def texts(values: Iterable[str]) -> str:
    """For a parameter that is cast to ``text[]``. Any text but NUL, which no text of PostgreSQL holds."""
    return "{" + ",".join(['"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values]) + "}"
