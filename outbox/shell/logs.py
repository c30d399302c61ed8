"""Logging of the processes: one line per record, JSON unless a person watches, nothing in it that can harm a terminal.

No payload: bytes are logged as their size, long text is cut. No secret: passwords in addresses are masked.
Control characters and those that reorder text are escaped, in our records and in those of libraries.
"""

import logging
import re
from collections.abc import Mapping
from typing import Final, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from outbox.shell.secrets import masked
from outbox.shell.setting_types import LogFormat, LogLevel

_MAX_TEXT: Final = 2000
# C0 and C1 controls, line and paragraph separators, and the marks that turn the direction of text.
_HARMFUL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
# Of these only what went wrong: at "info" they tell of every connection and channel.
_NOISY: Final = ("alembic", "asyncio", "psycopg", "sqlalchemy")
# These tell of every lost connection, with a traceback, what our own adapters tell in a line.
_REPEATING: Final = ("aio_pika", "aiormq")


def configure(
    *, level: LogLevel, format: LogFormat, stream: TextIO, fields: Mapping[str, str | int] | None = None
) -> None:
    """Send every record, ours and the libraries', to *stream*; call it once, before the first record.

    Args:
        format: ``auto`` is ``console`` on a terminal and ``json`` elsewhere.
        fields: what every record says of this process, whichever thread writes it.
    """
    is_console = format == "console" or (format == "auto" and stream.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _adding(fields or {}),
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _safe,
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _renderer(is_console)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for package in _NOISY:
        logging.getLogger(package).setLevel(logging.WARNING)
    for package in _REPEATING:
        logging.getLogger(package).setLevel(logging.CRITICAL)


def _adding(fields: Mapping[str, str | int]) -> Processor:
    def add(_logger: WrappedLogger, _method: str, record: EventDict) -> EventDict:
        record.update(fields)
        return record

    return add


def _renderer(is_console: bool) -> Processor:
    if is_console:
        return structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    return structlog.processors.JSONRenderer(default=repr, ensure_ascii=False)


def _safe(_logger: WrappedLogger, _method: str, record: EventDict) -> EventDict:
    safe = {harmless(str(key)): _safe_value(value) for key, value in record.items() if not key.startswith("_")}
    kept = {key: value for key, value in record.items() if key.startswith("_")}
    if isinstance(record.get("exception"), str):
        # A traceback keeps its lines, or nobody could read it.
        safe["exception"] = "\n".join(map(harmless, record["exception"].splitlines()))
    return {**safe, **kept}


def _safe_value(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if isinstance(value, Mapping):
        return {harmless(str(key)): _safe_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_safe_value(item) for item in value]
    return harmless(str(value))


def harmless(text: str) -> str:
    """*text* masked, cut to 2,000 characters, and without a character that could move a cursor or reorder a line."""
    if len(text) > _MAX_TEXT:
        text = f"{text[:_MAX_TEXT]}… ({len(text)} characters)"
    return _HARMFUL.sub(_escaped, masked(text))


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
