"""How every ``outbox dead`` command is told which dead letters: the same options, in the same words."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final
from uuid import UUID

import typer

from consumer.outcome import DeadCategory
from consumer.store.dead_list import DeadFilter, with_age
from consumer.store.stored import Connection
from outbox.schema import DEFAULT_GROUP
from outbox.shell.commands import WHICH
from outbox_admin.choices import EventType, OneGroup, Tenant, age, check_chosen, choosing

#: The largest number that a dead letter can have.
ID_MAX: Final = 2**63 - 1
_CATEGORIES: Final = ", ".join(DeadCategory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The letters that somebody named; ages count from when the database is asked."""

    letters: DeadFilter
    older_than: timedelta | None
    newer_than: timedelta | None

    def check(self, *, everything: bool) -> None:
        """Return if anything narrows it down; raises BadParameter where nothing does and it was not meant so."""
        one = self.letters
        check_chosen(
            *(one.ids, one.event_id, one.tenant, one.type, one.category, one.fingerprint),
            *(self.older_than, self.newer_than),
            everything=everything,
        )

    async def now(self, connection: Connection) -> DeadFilter:
        """The filter, its ages on the database's clock."""
        return await with_age(connection, self.letters, older_than=self.older_than, newer_than=self.newer_than)


def check_id(given: int | None) -> int | None:
    """Return *given*. Raises BadParameter: no dead letter can have that number, which the help need not spell out."""
    if given is not None and given > ID_MAX:
        raise typer.BadParameter(f"want at most {ID_MAX}, got {given}")
    return given


def _checked_ids(given: list[int] | None) -> list[int] | None:
    for one in given or ():
        check_id(one)
    return given


def _choice(  # noqa: PLR0913 - a command's options are its arguments
    dead_ids: Annotated[
        list[int] | None,
        typer.Argument(metavar="ID", min=1, callback=_checked_ids, help="The numbers that `outbox dead list` prints."),
    ] = None,
    *,
    group: OneGroup = DEFAULT_GROUP,
    tenant: Tenant = None,
    event_type: EventType = None,
    category: Annotated[
        DeadCategory | None,
        typer.Option(metavar="CATEGORY", help=f"Only those that failed so: {_CATEGORIES}.", rich_help_panel=WHICH),
    ] = None,
    fingerprint: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only those that `outbox dead groups` counts so.", rich_help_panel=WHICH),
    ] = None,
    event: Annotated[UUID | None, typer.Option(metavar="ID", help="Only this event's.", rich_help_panel=WHICH)] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Only those dead for longer, as 2h.", rich_help_panel=WHICH)
    ] = None,
    newer_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Only those dead for less, as 30m.", rich_help_panel=WHICH)
    ] = None,
) -> Choice:
    return Choice(
        letters=DeadFilter(
            group=group,
            ids=tuple(dead_ids) if dead_ids else None,
            event_id=event,
            tenant=tenant,
            type=event_type,
            category=category,
            fingerprint=fingerprint,
        ),
        older_than=None if older_than is None else age("--older-than", older_than),
        newer_than=None if newer_than is None else age("--newer-than", newer_than),
    )


#: Gives a command, which takes a ``Choice`` first, the options that make one.
chooses: Final = choosing(_choice)
