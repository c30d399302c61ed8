"""The ledger, and everything a group holds in its hands: work rows, dead letters, key positions, lanes."""

from alembic import op

from migrations.ring import Ring, ring_function

revision = "c0001"
down_revision = None
branch_labels = None
depends_on = None

# A message as it came: what a delivery is made from again.
_MESSAGE_COLUMNS = """
    tier smallint NOT NULL,
    tenant text NOT NULL,
    type text NOT NULL,
    ordering_key text,
    key_number bigint,
    ledger_at timestamptz,
    message_id text NOT NULL,
    app_id text NOT NULL,
    content_type text NOT NULL,
    headers jsonb NOT NULL,
    body bytea NOT NULL
"""

_TABLES = f"""
CREATE TABLE consumer.ledger (
    slot smallint NOT NULL,
    group_name text NOT NULL,
    event_id uuid NOT NULL,
    handler text NOT NULL,
    tenant text NOT NULL,
    state text NOT NULL CHECK (state IN ('running', 'done', 'retry', 'dead', 'skipped')),
    attempts smallint NOT NULL,
    token bigint,
    incarnation uuid,
    updated_at timestamptz NOT NULL DEFAULT statement_timestamp()
) PARTITION BY LIST (slot);

CREATE SEQUENCE consumer.token AS bigint;

CREATE TABLE consumer.incarnation (
    id uuid PRIMARY KEY,
    group_name text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL
);

CREATE TABLE consumer.work (
    group_name text NOT NULL,
    event_id uuid NOT NULL,
    reason text NOT NULL CHECK (reason IN ('retry', 'waiting', 'held', 'suspect', 'replay')),
    due_at timestamptz NOT NULL,
    attempts integer NOT NULL,
    handlers text[],
    owner uuid,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_error text,
    {_MESSAGE_COLUMNS},
    PRIMARY KEY (group_name, event_id)
) WITH (fillfactor = 70);
CREATE INDEX work_due ON consumer.work (group_name, tier, tenant, due_at) WHERE owner IS NULL;
-- Its condition on attempts is always true: only the statement that asks for the next due time says it, so no plan
-- for one lane takes this index instead of that lane's.
CREATE INDEX work_next ON consumer.work (group_name, due_at) WHERE owner IS NULL AND attempts >= 0;
CREATE INDEX work_key ON consumer.work (group_name, tenant, tier, ordering_key, key_number)
    WHERE ordering_key IS NOT NULL;
CREATE INDEX work_owner ON consumer.work (owner) WHERE owner IS NOT NULL;

CREATE TABLE consumer.key_position (
    group_name text NOT NULL,
    tenant text NOT NULL,
    tier smallint NOT NULL,
    ordering_key text NOT NULL,
    number bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (group_name, tenant, tier, ordering_key)
) WITH (fillfactor = 70);

CREATE TABLE consumer.dead (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_name text NOT NULL,
    event_id uuid,
    handlers text[] NOT NULL,
    category text NOT NULL,
    error_class text,
    message text NOT NULL,
    fingerprint text NOT NULL,
    attempts integer NOT NULL,
    dead_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    published_at timestamptz,
    resolution text CHECK (resolution IN ('replayed', 'discarded')),
    resolved_at timestamptz,
    resolved_by text,
    {_MESSAGE_COLUMNS}
);
CREATE INDEX dead_open ON consumer.dead (group_name, dead_at) WHERE resolution IS NULL;
CREATE INDEX dead_unpublished ON consumer.dead (id) WHERE published_at IS NULL;
CREATE UNIQUE INDEX dead_event ON consumer.dead (group_name, event_id)
    WHERE resolution IS NULL AND event_id IS NOT NULL;
CREATE INDEX dead_key ON consumer.dead (group_name, tenant, tier, ordering_key)
    WHERE resolution IS NULL AND ordering_key IS NOT NULL;

-- Apart from the row it belongs to, so that reading it can be granted apart.
CREATE TABLE consumer.dead_trace (
    dead_id bigint PRIMARY KEY REFERENCES consumer.dead ON DELETE CASCADE,
    trace text NOT NULL
);
REVOKE ALL ON consumer.dead_trace FROM PUBLIC;

CREATE TABLE consumer.lane (
    group_name text NOT NULL,
    tier smallint NOT NULL,
    tenant text NOT NULL,
    queue text NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (group_name, tier, tenant)
);

CREATE TABLE consumer.group_start (
    group_name text PRIMARY KEY,
    started_at timestamptz NOT NULL
);

CREATE TABLE consumer.audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor text NOT NULL,
    action text NOT NULL,
    group_name text NOT NULL,
    detail jsonb NOT NULL
);
"""

# Rows are removed by this alone. Which slots may go is decided here, by this clock, so no process with a wrong one
# drops a row that a duplicate could still ask for. It reads no rows: a scan under this lock would hold up claims.
# It gives up after 50 ms rather than make a claim wait behind it.
_TRUNCATE = """
CREATE FUNCTION consumer.is_slot_free(target integer, keep_for interval) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT (target - first % slots + slots) % slots > last - first
    FROM consumer.ring() ring,
         LATERAL (SELECT floor(extract(epoch FROM clock_timestamp() - keep_for) / slot_seconds)::bigint AS first,
                         floor(extract(epoch FROM clock_timestamp() + interval '5 minutes') / slot_seconds)::bigint
                             AS last) span
$$;
CREATE FUNCTION consumer.truncate_slot(target integer, keep_for interval) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    partition text := format('consumer.ledger_%s', target);
BEGIN
    IF keep_for IS NULL OR keep_for <= interval '0' OR NOT consumer.is_slot_free(target, keep_for) THEN
        RETURN 'in use';
    END IF;
    IF pg_relation_size(partition) = 0 THEN
        RETURN 'empty';
    END IF;
    BEGIN
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', partition);
    EXCEPTION WHEN lock_not_available THEN
        RETURN 'busy';
    END;
    IF NOT consumer.is_slot_free(target, keep_for) THEN
        RETURN 'in use';
    END IF;
    EXECUTE format('TRUNCATE %s', partition);
    RETURN 'truncated';
END
$$;
REVOKE ALL ON FUNCTION consumer.truncate_slot(integer, interval) FROM PUBLIC;
"""

# Where a key stands, read after its lock is held, so never from before it; with no lock given, just read. A function,
# for its plans: they use the keys' indexes from the first row on, and are not made again for each event.
_READ_KEY = """
CREATE FUNCTION consumer.read_key(
    of_group text, of_tenant text, of_tier smallint, of_key text, lock bigint,
    OUT is_ours boolean, OUT number bigint, OUT now timestamptz, OUT group_started_at timestamptz
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
BEGIN
    is_ours := lock IS NULL OR pg_try_advisory_xact_lock(lock);
    IF is_ours THEN
        SELECT p.number INTO number FROM consumer.key_position p
        WHERE p.group_name = of_group AND p.tenant = of_tenant AND p.tier = of_tier AND p.ordering_key = of_key;
        SELECT s.started_at INTO group_started_at FROM consumer.group_start s WHERE s.group_name = of_group;
    END IF;
    now := clock_timestamp();
END
$$;
"""

_TABLE_NAMES = ("ledger", "incarnation", "work", "key_position", "dead_trace", "dead", "lane", "group_start", "audit")


def upgrade() -> None:
    ring = Ring.from_context()
    op.execute(_TABLES)
    # A claim names its partition directly, so it locks one; it asks this for the ring's shape.
    op.execute(ring_function("consumer.ring", ring))
    for slot in range(ring.slots):
        op.execute(
            f"CREATE TABLE consumer.ledger_{slot} PARTITION OF consumer.ledger FOR VALUES IN ({slot});\n"
            f"ALTER TABLE consumer.ledger_{slot} ADD PRIMARY KEY (event_id, group_name, handler);"
        )
    op.execute(_READ_KEY)
    op.execute(_TRUNCATE)


def downgrade() -> None:
    for table in _TABLE_NAMES:
        op.execute(f"DROP TABLE consumer.{table}")
    for function in (
        "read_key(text, text, smallint, text, bigint)",
        "truncate_slot(integer, interval)",
        "is_slot_free(integer, interval)",
        "ring()",
    ):
        op.execute(f"DROP FUNCTION consumer.{function}")
    op.execute("DROP SEQUENCE consumer.token")
