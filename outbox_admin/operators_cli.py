"""``outbox dead operator``: who may see and decide about whose dead letters."""

import asyncio
from typing import Annotated, Final

import typer

from consumer.store import operators
from outbox.errors import ConfigError
from outbox.shell.commands import AsJson, command, group
from outbox.shell.console import console, print_json, table
from outbox.shell.database import connect, store_errors
from outbox.shell.logs import harmless
from outbox.shell.words import in_utc
from outbox_admin.audit import named
from outbox_admin.choices import Actor
from outbox_admin.settings import database_url

app: Final = group(
    help="Database roles that see, replay and discard the dead letters of some tenants, and no others.",
)

Role = Annotated[str, typer.Argument(metavar="ROLE", help="A role of the database server, a person's or a team's.")]


@command(app, examples=("outbox dead operator grant ann --tenant acme --tenant globex --payloads",))
def grant(
    role: Role,
    *,
    tenant: Annotated[list[str], typer.Option(help="Whose dead letters; may be repeated.")],
    payloads: Annotated[bool, typer.Option("--payloads", help="It may read headers and payloads too.")] = False,
    traces: Annotated[bool, typer.Option("--traces", help="It may read stack traces too.")] = False,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Let a role, and its members, work on the dead letters of these tenants. Run it as the tables' owner.

    Use it so that people mend their own tenants' events without seeing others'. The database holds the line: the role
    sees no other tenant, and can write neither events nor the audit's past.
    """

    async def run() -> None:
        async with await connect(database_url(), application_name="outbox") as connection:
            with store_errors():
                await operators.grant(connection, role, tenant, actor=named(actor), payloads=payloads, traces=traces)

    asyncio.run(run())
    if as_json:
        print_json({"role": role, "granted": sorted(set(tenant))})
        return
    typer.echo(f"{role} works on the dead letters of {', '.join(sorted(set(tenant)))}")


@command(app, examples=("outbox dead operator revoke ann --tenant acme", "outbox dead operator revoke ann"))
def revoke(
    role: Role,
    *,
    tenant: Annotated[list[str] | None, typer.Option(help="Only this tenant; may be repeated.")] = None,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Take tenants from a role; all that it has, and its rights with them, if none is given.

    Use it when somebody leaves, or a tenant moves to another team.
    """

    async def run() -> list[str]:
        async with await connect(database_url(), application_name="outbox") as connection:
            with store_errors():
                return await operators.revoke(connection, role, tenant, actor=named(actor))

    taken = asyncio.run(run())
    if not taken:
        raise ConfigError(f"revoke: want a role that has such tenants, got {role[:80]!r}, which has none")
    if as_json:
        print_json({"role": role, "revoked": taken})
        return
    typer.echo(f"{role} no longer works on the dead letters of {', '.join(taken)}")


@command(app, "list", examples=("outbox dead operator list",))
def list_operators(*, as_json: AsJson = False) -> None:
    """List who may work on whose dead letters. Who may write consumer.work sees all, and is not listed.

    Use it to see who can read whose dead letters.
    """

    async def run() -> list[operators.Operator]:
        async with await connect(database_url(), application_name="outbox") as connection:
            with store_errors():
                return await operators.every(connection)

    found = asyncio.run(run())
    if as_json:
        print_json(found)
        return
    if not found:
        typer.echo("no role is limited to tenants")
        return
    made = table("role", "tenant", "payloads", "traces", "granted by", "at")
    for one in found:
        made.add_row(
            harmless(one.role),
            harmless(one.tenant),
            *("yes" if may else "no" for may in (one.sees_payloads, one.sees_traces)),
            harmless(one.granted_by),
            in_utc(one.granted_at),
        )
    console().print(made)
