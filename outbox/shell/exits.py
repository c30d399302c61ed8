"""How a command ends: one sentence on stderr and an exit code that a supervisor can act on."""

import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from outbox.errors import (
    BrokerRefused,
    BrokerUnavailable,
    ConfigError,
    OutboxError,
    PermanentError,
    StoreRefused,
    StoreUnavailable,
    TransientError,
)
from outbox.shell import usage
from outbox.shell.commands import DEBUG, DISTRIBUTION
from outbox.shell.extras import lacking
from outbox.shell.secrets import masked

DONE: Final = 0
#: A fault of ours, as of any Python program.
FAULT: Final = 1
USAGE: Final = 64
UNAVAILABLE: Final = 69
TRY_AGAIN: Final = 75
CONFIGURATION: Final = 78
INTERRUPTED: Final = 130

# The first that fits, so leaves stand before their branch. A permanent error needs an operator, as a wrong
# setting does, and a supervisor must not start the process again: both are configuration.
_CODES: Final[tuple[tuple[tuple[type[OutboxError], ...], int], ...]] = (
    ((StoreRefused, BrokerRefused), CONFIGURATION),
    ((StoreUnavailable, BrokerUnavailable), UNAVAILABLE),
    ((TransientError,), TRY_AGAIN),
    ((ConfigError, PermanentError), CONFIGURATION),
)

#: What to do next, where the error itself cannot say it.
_NEXT: Final = {UNAVAILABLE: "; 'outbox doctor' looks closer"}
_TRACKERS: Final = ("issues", "issue tracker", "bug tracker", "tracker")


def code_of(error: OutboxError) -> int:
    """The exit code for *error*; what fits no branch is the caller's input, and so usage."""
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), USAGE)


def sentence(text: str) -> str:
    """*text* on one line."""
    return " ".join(text.split())


def run_cli(
    app: typer.Typer | TyperGroup, *, arguments: Sequence[str] | None = None, name: str | None = None
) -> NoReturn:
    """Run *app* and leave the process with the right code: a command's own is the integer it returns.

    An error of ours and a wrong command line are one sentence on stderr. So is a fault of ours, which ends the process
    with 1: its traceback is in the log of a process that has one, and elsewhere on stderr with ``--debug``.

    Args:
        arguments: the command line without the program's name; None takes the process's own.
        name: the program's name in messages; None takes the process's own.
    """
    program = name or os.path.basename(sys.argv[0])
    command = typer.main.get_command(app) if isinstance(app, typer.Typer) else app
    context: dict[str, object] = {}
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        code = command.main(given, program, standalone_mode=False, obj=context)
        sys.stdout.flush()
    except OutboxError as error:
        code = code_of(error)
        _leave(f"{program}: {sentence(str(error))}{_NEXT.get(code, '')}", code)
    except TyperException as error:
        _leave(usage.told(program, error), USAGE)
    except (typer.Abort, KeyboardInterrupt):
        _leave(f"{program}: interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python would complain again while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(DONE) from None
    except Exception as error:
        if context.get(DEBUG):
            raise
        if told := lacking(program, error):
            _leave(told, CONFIGURATION)
        _log_fault(error)
        _leave(_fault(program, error), FAULT)
    raise SystemExit(code if isinstance(code, int) else DONE)


def _fault(program: str, error: Exception) -> str:
    from importlib import metadata  # noqa: PLC0415 - it takes longer than all of typer

    urls = dict(url.split(", ", 1) for url in metadata.metadata(DISTRIBUTION).get_all("Project-URL") or ())
    where = next((f" to {url}" for label, url in urls.items() if label.lower() in _TRACKERS), "")
    said = masked(sentence(f"{type(error).__name__}: {error}"))
    return f"{program}: a fault of ours: {said}; please report{where} what '{program} --debug ...' prints of it"


def _log_fault(error: Exception) -> None:
    """Say it where this process logs, if it has begun to: there it must not be lost, and nobody runs it again."""
    structlog = sys.modules.get("structlog")
    if structlog is not None and structlog.is_configured():
        structlog.get_logger(__name__).critical("ended by a fault of ours", exc_info=error)


def _leave(message: str, code: int) -> NoReturn:
    if message:
        print(message, file=sys.stderr)
    raise SystemExit(code)
