"""Dead letters as JSON: one object each, of what may be shown to anyone; payload and headers only where asked for."""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from consumer.store.dead_list import Listed
from consumer.store.stored import Stored
from outbox.errors import ConfigError


def plain(letter: Listed) -> dict[str, object]:
    """*letter* for JSON: its tier by name, as everywhere else."""
    return asdict(letter.summary) | {
        "tier": letter.summary.tier.label,
        "outcome": letter.outcome,
        "dead_again": letter.dead_again,
        "earlier": letter.earlier,
        "owner": letter.owner,
    }


def whole(letter: Listed, message: Stored | None) -> dict[str, object]:
    """As ``plain``, and with the *message* if there is one: text stays text, other bytes become escapes."""
    found = plain(letter)
    if message is not None:
        found["headers"] = dict(message.message.headers)
        found["payload"] = message.message.body.decode(errors="backslashreplace")
    return found


def line(letter: Listed, message: Stored | None) -> str:
    """One line of an export."""
    return json.dumps(whole(letter, message), default=str) + "\n"


@contextmanager
def target(path: Path | None) -> Iterator[TextIO]:
    """Where an export is written: standard output, or *path*, which is there as a whole afterwards or not at all.

    Only its owner can read the file. Raises ConfigError where it cannot be written.
    """
    if path is None:
        yield sys.stdout
        return
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise ConfigError(f"--output: want a file that can be written, got {path}: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
