"""How a command ends: one sentence on stderr and an exit code that a supervisor can act on."""

import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import typer
from typer.exceptions import TyperException

from outbox.errors import (
    BrokerUnavailable,
    ConfigError,
    OutboxError,
    PermanentError,
    StoreUnavailable,
    TransientError,
)

DONE: Final = 0
USAGE: Final = 64
UNAVAILABLE: Final = 69
TRY_AGAIN: Final = 75
CONFIGURATION: Final = 78
INTERRUPTED: Final = 130

# The first that fits, so leaves stand before their branch. A permanent error needs an operator, as a wrong
# setting does, and a supervisor must not start the process again: both are configuration.
_CODES: Final[tuple[tuple[tuple[type[OutboxError], ...], int], ...]] = (
    ((StoreUnavailable, BrokerUnavailable), UNAVAILABLE),
    ((TransientError,), TRY_AGAIN),
    ((ConfigError, PermanentError), CONFIGURATION),
)


def code_of(error: OutboxError) -> int:
    """The exit code for *error*; what fits no branch is the caller's input, and so usage."""
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), USAGE)


def sentence(text: str) -> str:
    """*text* on one line."""
    return " ".join(text.split())


def run_cli(app: typer.Typer, *, arguments: Sequence[str] | None = None, name: str | None = None) -> NoReturn:
    """Run *app* and leave the process with the right code: a command's own is the integer it returns.

    An error of ours and a wrong command line are one sentence on stderr, without a traceback. Anything
    else is a bug: it goes on to Python, with its traceback, and ends the process with 1.

    Args:
        arguments: the command line without the program's name; None takes the process's own.
        name: the program's name in messages; None takes the process's own.
    """
    program = name or os.path.basename(sys.argv[0])
    command = typer.main.get_command(app)
    try:
        code = command.main(list(sys.argv[1:] if arguments is None else arguments), program, standalone_mode=False)
        sys.stdout.flush()
    except OutboxError as error:
        _leave(f"{program}: {sentence(str(error))}", code_of(error))
    except TyperException as error:
        _leave(_usage(program, error), USAGE)
    except typer.Abort:
        _leave(f"{program}: interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python would complain again while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(DONE) from None
    raise SystemExit(code if isinstance(code, int) else DONE)


def _usage(program: str, error: TyperException) -> str:
    # A command group called with nothing "fails" with its own help text, of many lines.
    message = error.format_message()
    return (
        message if "\n" in message.strip() else f"{program}: {sentence(message).rstrip('.')}. Try '{program} --help'."
    )


def _leave(message: str, code: int) -> NoReturn:
    print(message, file=sys.stderr)
    raise SystemExit(code)
