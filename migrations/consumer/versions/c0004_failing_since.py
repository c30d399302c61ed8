"""Since when an event's attempts have failed, apart from how long it has waited."""

from alembic import op

revision = "c0004"
down_revision = "c0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE consumer.work ADD COLUMN failing_since timestamptz")


def downgrade() -> None:
    op.execute("ALTER TABLE consumer.work DROP COLUMN failing_since")
