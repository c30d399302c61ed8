"""What operators and the consumer's own rules tell every process of a group: pauses and weights."""

from alembic import op

revision = "c0002"
down_revision = "c0001"
branch_labels = None
depends_on = None

# A pause is about everything that fits all that its row names; a row that names nothing is about the whole group.
# Who ends a pause ends its own: that of an operator outlives one that a rule sets on the same for ten seconds.
_CONTROL = """
CREATE TABLE consumer.control (
    group_name text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('pause', 'weight')),
    tenant text,
    tier smallint,
    type text,
    handler text,
    source text NOT NULL CHECK (source IN ('operator', 'policy', 'breaker')),
    weight integer CHECK (weight >= 1),
    actor text NOT NULL,
    reason text NOT NULL,
    set_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    until timestamptz,
    CHECK ((kind = 'weight') = (weight IS NOT NULL)),
    CHECK (kind <> 'weight' OR (tenant IS NOT NULL AND tier IS NULL AND type IS NULL AND handler IS NULL))
);
CREATE UNIQUE INDEX control_scope ON consumer.control (
    group_name, kind, source, coalesce(tenant, ''), coalesce(tier, -1), coalesce(type, ''), coalesce(handler, '')
);
"""

# When a row that a pause has put off was due.
_PUT_OFF = """
ALTER TABLE consumer.work ADD COLUMN due_before_pause timestamptz;
CREATE INDEX work_paused ON consumer.work (group_name, tenant) WHERE due_before_pause IS NOT NULL;
"""


def upgrade() -> None:
    op.execute(_CONTROL)
    op.execute(_PUT_OFF)


def downgrade() -> None:
    op.execute("ALTER TABLE consumer.work DROP COLUMN due_before_pause")
    op.execute("DROP TABLE consumer.control")
