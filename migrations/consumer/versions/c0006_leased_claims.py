"""Leased handlers: claims that were abandoned, keys that a running claim holds, and what handlers returned."""

from alembic import op

revision = "c0006"
down_revision = "c0005"
branch_labels = None
depends_on = None

_TABLES = """
-- How often the claim's process ended, or lost its lease, without saying how the attempt ended.
ALTER TABLE consumer.ledger ADD COLUMN unended smallint NOT NULL DEFAULT 0;

-- A key whose event a leased handler has, with no transaction open. It holds while the incarnation's lease does.
CREATE TABLE consumer.key_claim (
    group_name text NOT NULL,
    tenant text NOT NULL,
    tier smallint NOT NULL,
    ordering_key text NOT NULL,
    event_id uuid NOT NULL,
    token bigint NOT NULL,
    incarnation uuid NOT NULL,
    PRIMARY KEY (group_name, tenant, tier, ordering_key)
) WITH (fillfactor = 70);

CREATE TABLE consumer.result (
    event_id uuid NOT NULL,
    group_name text NOT NULL,
    handler text NOT NULL,
    tenant text NOT NULL,
    result jsonb NOT NULL,
    at timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (event_id, group_name, handler)
);
CREATE INDEX result_age ON consumer.result (group_name, at);
"""

# As the function with five arguments, which processes of the former release go on to call; and a key is nobody else's
# while a leased handler has another event of it.
_READ_KEY = """
CREATE FUNCTION consumer.read_key(
    of_group text, of_tenant text, of_tier smallint, of_key text, lock bigint, of_event uuid,
    OUT is_ours boolean, OUT number bigint, OUT now timestamptz, OUT group_started_at timestamptz
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
BEGIN
    is_ours := lock IS NULL OR pg_try_advisory_xact_lock(lock);
    IF is_ours THEN
        is_ours := NOT EXISTS (
            SELECT FROM consumer.key_claim c JOIN consumer.incarnation i ON i.id = c.incarnation
            WHERE c.group_name = of_group AND c.tenant = of_tenant AND c.tier = of_tier AND c.ordering_key = of_key
              AND c.event_id <> of_event AND i.expires_at > clock_timestamp()
        );
    END IF;
    IF is_ours THEN
        SELECT p.number INTO number FROM consumer.key_position p
        WHERE p.group_name = of_group AND p.tenant = of_tenant AND p.tier = of_tier AND p.ordering_key = of_key;
        SELECT s.started_at INTO group_started_at FROM consumer.group_start s WHERE s.group_name = of_group;
    END IF;
    now := clock_timestamp();
END
$$;
"""


def upgrade() -> None:
    op.execute(_TABLES)
    op.execute(_READ_KEY)


def downgrade() -> None:
    op.execute("DROP FUNCTION consumer.read_key(text, text, smallint, text, bigint, uuid)")
    op.execute("DROP TABLE consumer.result")
    op.execute("DROP TABLE consumer.key_claim")
    op.execute("ALTER TABLE consumer.ledger DROP COLUMN unended")
