"""Asking before something is gone."""

import sys

import typer

from outbox.shell.console import note
from outbox.shell.exits import INTERRUPTED


def ask(question: str) -> None:
    """Return if a person says yes. Raises typer.Exit if not, and BadParameter where there is nobody to ask.

    *question* says what would be destroyed, in numbers. It is asked on standard error: a result may be piped.
    """
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            f"want --yes where nobody can be asked, got neither --yes nor a terminal; it would ask: {question}"
        )
    if not typer.confirm(question, err=True):
        note("nothing was changed")
        raise typer.Exit(INTERRUPTED)
