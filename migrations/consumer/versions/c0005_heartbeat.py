"""What a process says of itself each time it renews its lease: its build, its lanes, what it did."""

from alembic import op

revision = "c0005"
down_revision = "c0004"
branch_labels = None
depends_on = None

# A process of older code writes neither, and still counts as alive.
_COLUMNS = """
ALTER TABLE consumer.incarnation
    ADD COLUMN version text NOT NULL DEFAULT '',
    ADD COLUMN heartbeat jsonb,
    ADD COLUMN heartbeat_at timestamptz;
"""


def upgrade() -> None:
    op.execute(_COLUMNS)


def downgrade() -> None:
    op.execute("ALTER TABLE consumer.incarnation DROP version, DROP heartbeat, DROP heartbeat_at")
