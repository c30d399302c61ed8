"""Asking before something is gone."""

import sys

import typer


def ask(question: str) -> None:
    """Return if a person says yes. Raises typer.Abort if not, and BadParameter where there is nobody to ask."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("want --yes where nobody can be asked, got neither --yes nor a terminal")
    typer.confirm(question, abort=True)
