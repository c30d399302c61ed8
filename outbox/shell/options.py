"""Options that several programs have."""

from typing import Annotated, Literal, TypeAlias

import typer

from outbox.shell import completion
from outbox.shell.commands import WHICH

#: As ``outbox.shell.setting_types.BrokerName``, which a command line that prints its help has no time to import.
Broker: TypeAlias = Annotated[
    Literal["rabbitmq", "postgres"] | None,
    typer.Option(help="Where queues are; else by the setting.", show_default=False),
]
OnlyGroup: TypeAlias = Annotated[
    str,
    typer.Option(
        *("--group", "-g"),
        metavar="GROUP",
        help="Which group; the only one there is, if not given.",
        rich_help_panel=WHICH,
        autocompletion=completion.groups,
    ),
]
