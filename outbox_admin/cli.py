"""The ``outbox`` command: what it can do, each part imported when it is run."""

from typing import Final

from outbox.shell.commands import Entry, application
from outbox.shell.exits import run_cli

_SET_UP: Final = "Set up"
_LOOK: Final = "Look"
_HOLD: Final = "Hold back"
_MEND: Final = "Mend"

_ENTRIES: Final = (
    Entry(
        name="migrate",
        module="outbox_admin.migrate_cli",
        line="Create our tables, or bring them up to date. Safe to repeat; an app's own tables are never touched.",
        panel=_SET_UP,
    ),
    Entry(
        name="group",
        module="outbox_admin.group_cli",
        line="Groups: the services that each handle every event once. Add one before its consumer starts.",
        panel=_SET_UP,
        is_group=True,
    ),
    Entry(
        name="config",
        module="outbox_admin.config_cli",
        line="Settings: what is in force and where it comes from, what is wrong, what one means. Asks no server.",
        panel=_SET_UP,
        is_group=True,
    ),
    Entry(
        name="dev",
        module="outbox_admin.dev_cli",
        line="Run a PostgreSQL on this machine until Ctrl-C, for development; then it and its data are gone.",
        panel=_SET_UP,
    ),
    Entry(
        name="demo",
        module="outbox_admin.demo_cli",
        line="Show one noisy tenant beside nineteen quiet ones, while relay and consumer are killed, and count.",
        panel=_SET_UP,
    ),
    Entry(
        name="doctor",
        module="outbox_admin.doctor_cli",
        line="Look at everything that a deployment leans on, and say of each finding what to do. Changes nothing.",
        panel=_LOOK,
    ),
    Entry(
        name="tenant",
        module="outbox_admin.tenant_cli",
        line="One tenant: what there is of it, a pause, its share; and its queues once it has left.",
        panel=_LOOK,
        is_group=True,
    ),
    Entry(
        name="result",
        module="outbox_admin.result_cli",
        line="Show what handlers returned for an event, for as long as OUTBOX_CONSUMER_RESULT_DAYS keeps it.",
        panel=_LOOK,
    ),
    Entry(
        name="paused",
        module="outbox_admin.control_cli",
        line="List what is paused and who has another weight than 1: who said so, why, and until when.",
        panel=_LOOK,
    ),
    Entry(
        name="pause",
        module="outbox_admin.control_cli",
        line="Let nothing start that fits all that is given; with --group alone, nothing of that group."
        " What runs goes on.",
        panel=_HOLD,
    ),
    Entry(
        name="resume",
        module="outbox_admin.control_cli",
        line="End the pause of exactly what is given, whoever has set it.",
        panel=_HOLD,
    ),
    Entry(
        name="deferred",
        module="outbox_admin.deferred_cli",
        line="Events that one group could not be sent: list, show, retry, discard.",
        panel=_MEND,
        is_group=True,
    ),
    Entry(
        name="dead",
        module="outbox_admin.dead_cli",
        line="Events that get no further attempt: group, own, replay or discard them.",
        panel=_MEND,
        is_group=True,
    ),
    Entry(
        name="replay",
        module="outbox_admin.replay_cli",
        line="Publish again, marked as replays, what groups were sent since TIME. Nothing is handled twice.",
        panel=_MEND,
        is_group=True,
    ),
    Entry(
        name="rebase",
        module="outbox_admin.rebase_cli",
        line="Make the positions this database's own, after a restore or a failover."
        " Stop the apps and the relays first.",
        panel=_MEND,
    ),
)

app: Final = application(
    help="Fairpost's administration: migrate the database, name groups, see what is stuck, mend what failed.",
    epilog="The database is named by OUTBOX_DATABASE_URL or DATABASE_URL.\n\nBegin with: outbox migrate",
    entries=_ENTRIES,
)


def main() -> None:
    """Run the command and leave the process."""
    run_cli(app, name="outbox")
