"""Marks of events that a process may have died of: who last began to handle them."""

from alembic import op

revision = "c0007"
down_revision = "c0006"
branch_labels = None
depends_on = None

# A mark without an incarnation: somebody had the event in hand and died, and whether it was begun is not known.
# alone counts how often it was begun by a process that ran nothing else, and did not live to end it.
_START = """
CREATE TABLE consumer.start (
    group_name text NOT NULL,
    event_id uuid NOT NULL,
    incarnation uuid,
    alone smallint NOT NULL DEFAULT 0,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (group_name, event_id)
) WITH (fillfactor = 70);
CREATE INDEX work_suspect ON consumer.work (group_name, due_at) WHERE reason = 'suspect';
"""


def upgrade() -> None:
    op.execute(_START)


def downgrade() -> None:
    op.execute("DROP INDEX consumer.work_suspect")
    op.execute("DROP TABLE consumer.start")
