"""What is told of a failure in dead letters, work rows and logs: made safe, bounded, and never a payload."""

import hashlib
import re
import traceback
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from consumer.decide.causes import chain
from consumer.decide.redaction import MESSAGE_CHARS_MAX, printable, redact, summarise

_TRACE_CHARS_MAX: Final = 16_384
_NUMBER: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """*fingerprint* is the same for failures that are alike; *trace* is for those who may read it."""

    message: str
    fingerprint: str
    error_class: str | None = None
    trace: str | None = None


def report_of(what: BaseException | str, *, values: Collection[str] = ()) -> Report:
    """Return what may be told of *what*: an error, or what an app said of one. *values* stand in the payload."""
    if isinstance(what, str):
        return sentence(redact(what, values=values) or "no reason was given")
    summary = summarise(what, values=values)
    return Report(
        message=str(summary)[:MESSAGE_CHARS_MAX],
        fingerprint=summary.fingerprint,
        error_class=summary.error_class,
        trace=_trace(what),
    )


def sentence(text: str) -> Report:
    """Return *text*, a sentence of our own that repeats nothing of a payload. Numbers make no other failure of it."""
    digest = hashlib.blake2b(_NUMBER.sub("0", text).encode(errors="backslashreplace"), digest_size=8)
    return Report(message=printable(text)[:MESSAGE_CHARS_MAX], fingerprint=digest.hexdigest())


def _trace(error: BaseException) -> str:
    """Return where *error* and its causes were raised: code alone, since messages repeat values."""
    parts = []
    for link in chain(error):
        parts.append(f"{type(link).__module__}.{type(link).__qualname__}\n")
        parts += traceback.format_tb(link.__traceback__)
    return "".join(parts)[-_TRACE_CHARS_MAX:]
