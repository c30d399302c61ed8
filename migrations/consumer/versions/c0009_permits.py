"""Permits: how many events under a cap of the whole fleet each of its processes may run."""

from alembic import op

revision = "c0009"
down_revision = "c0008"
branch_labels = None
depends_on = None

# A holder lives as long as the database session that has its lock. missed_at is when one without a session was first
# seen; it has a while to come back. A tenant or type of '' is every one.
_TABLES = """
CREATE TABLE consumer.permit_holder (
    id uuid PRIMARY KEY,
    group_name text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    missed_at timestamptz
);
CREATE TABLE consumer.permit (
    group_name text NOT NULL,
    tenant text NOT NULL,
    type text NOT NULL,
    holder uuid NOT NULL REFERENCES consumer.permit_holder ON DELETE CASCADE,
    held integer NOT NULL CHECK (held >= 0),
    wants_more boolean NOT NULL,
    PRIMARY KEY (group_name, tenant, type, holder)
) WITH (fillfactor = 70);
CREATE INDEX permit_of ON consumer.permit (holder);
"""

_FUNCTIONS = """
CREATE FUNCTION consumer.holder_lock(holder uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT hashtextextended('fairpost permits ' || holder::text, 0) $$;

-- One scope after the other, always in the order given: each under a lock of its own, which a statement of its own then
-- sees everything behind. Never less than what runs already, whatever is left.
CREATE FUNCTION consumer.hold_permits(
    of_group text, of_holder uuid, tenants text[], types text[], asked integer[], used integer[], wanted integer[],
    mosts integer[]
) RETURNS TABLE (tenant text, type text, held integer) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    others bigint;
BEGIN
    FOR i IN 1 .. cardinality(tenants) LOOP
        PERFORM pg_advisory_xact_lock(
            hashtextextended(concat_ws(E'\\x1f', 'fairpost permit', of_group, tenants[i], types[i]), 0));
        SELECT coalesce(sum(p.held), 0) INTO others FROM consumer.permit p
        WHERE p.group_name = of_group AND p.tenant = tenants[i] AND p.type = types[i] AND p.holder <> of_holder;
        tenant := tenants[i];
        type := types[i];
        held := greatest(used[i], least(asked[i], mosts[i] - others));
        IF held = 0 AND wanted[i] <= 0 THEN
            DELETE FROM consumer.permit p WHERE p.group_name = of_group AND p.tenant = tenants[i]
                AND p.type = types[i] AND p.holder = of_holder;
        ELSE
            INSERT INTO consumer.permit AS p (group_name, tenant, type, holder, held, wants_more)
            VALUES (of_group, tenants[i], types[i], of_holder, hold_permits.held, wanted[i] > hold_permits.held)
            ON CONFLICT ON CONSTRAINT permit_pkey DO UPDATE SET held = excluded.held, wants_more = excluded.wants_more
            WHERE p.held <> excluded.held OR p.wants_more <> excluded.wants_more;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

-- Whoever's lock can be had has no session, or this one. It is given grace to open one, from when that was first seen.
CREATE FUNCTION consumer.reap_permits(of_group text, me uuid, grace interval) RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT h.id, h.missed_at FROM consumer.permit_holder h WHERE h.group_name = of_group AND h.id <> me
               ORDER BY h.id LOOP
        IF NOT pg_try_advisory_xact_lock(consumer.holder_lock(one.id)) THEN
            UPDATE consumer.permit_holder SET missed_at = NULL WHERE id = one.id AND missed_at IS NOT NULL;
        ELSIF one.missed_at IS NULL THEN
            UPDATE consumer.permit_holder SET missed_at = clock_timestamp() WHERE id = one.id;
        ELSIF one.missed_at + grace <= clock_timestamp() THEN
            DELETE FROM consumer.permit_holder WHERE id = one.id;
            RETURN NEXT one.id;
        END IF;
    END LOOP;
END
$$;
"""


def upgrade() -> None:
    op.execute(_TABLES)
    op.execute(_FUNCTIONS)


def downgrade() -> None:
    for function in (
        "reap_permits(text, uuid, interval)",
        "hold_permits(text, uuid, text[], text[], integer[], integer[], integer[], integer[])",
        "holder_lock(uuid)",
    ):
        op.execute(f"DROP FUNCTION consumer.{function}")
    op.execute("DROP TABLE consumer.permit")
    op.execute("DROP TABLE consumer.permit_holder")
