"""Options that several programs have."""

from typing import Annotated, Any, Literal, TypeAlias

import typer

from outbox.shell import completion
from outbox.shell.commands import WHICH

#: As ``outbox.shell.setting_types.BrokerName``, which a command line that prints its help has no time to import.
Broker: TypeAlias = Annotated[
    Literal["rabbitmq", "postgres"] | None,
    typer.Option(help="Where queues are; else by the setting.", show_default=False),
]


def group_option(help: str) -> Any:
    """``--group``, with *help*."""
    return typer.Option(
        *("--group", "-g"), metavar="GROUP", help=help, rich_help_panel=WHICH, autocompletion=completion.groups
    )
