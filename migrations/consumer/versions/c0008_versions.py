"""What each process can read, so that rows which only some code can handle wait for that code."""

from alembic import op

revision = "c0008"
down_revision = "c0007"
branch_labels = None
depends_on = None

# By type and handler the oldest and the newest version of a payload. NULL is a process that did not say: it is given
# everything. No handler named means all that there are of the type.
_KNOWS = """
ALTER TABLE consumer.incarnation ADD COLUMN knows jsonb;
CREATE FUNCTION consumer.knows(knows jsonb, of_type text, handlers text[], version integer) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT knows IS NULL OR (
        knows ? of_type AND (cardinality(handlers) = 0 OR handlers IS NULL OR knows -> of_type ?& handlers)
        AND NOT EXISTS (
            SELECT FROM jsonb_each(knows -> of_type) known
            WHERE (cardinality(handlers) = 0 OR handlers IS NULL OR known.key = ANY (handlers))
              AND NOT version BETWEEN (known.value ->> 0)::integer AND (known.value ->> 1)::integer))
$$;
"""


def upgrade() -> None:
    op.execute(_KNOWS)


def downgrade() -> None:
    op.execute("DROP FUNCTION consumer.knows(jsonb, text, text[], integer)")
    op.execute("ALTER TABLE consumer.incarnation DROP COLUMN knows")
