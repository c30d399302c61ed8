"""The ring log, and everything that emits, positions and publishes."""

from alembic import op

from migrations.ring import Ring, current_slot_function, ring_function

revision = "o0001"
down_revision = None
branch_labels = None
depends_on = None

_EVENT_COLUMNS = """
    id uuid NOT NULL,
    bucket smallint NOT NULL,
    tier smallint NOT NULL CHECK (tier BETWEEN 0 AND 2),
    tenant text NOT NULL CHECK (tenant <> ''),
    tenant_hash bigint NOT NULL,
    type text NOT NULL,
    data_version integer NOT NULL,
    source text NOT NULL,
    content_type text NOT NULL,
    payload bytea NOT NULL,
    emitted_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    ledger_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    ordering_key text,
    key_number bigint,
    key_first boolean,
    key_previous_at timestamptz,
    idempotency_key text,
    actor text,
    causation_id text,
    correlation_id text,
    traceparent text,
    tracestate text
"""

_TABLES = f"""
CREATE SEQUENCE outbox.event_seq AS bigint CACHE 1;
CREATE SEQUENCE outbox.token AS bigint;

CREATE TABLE outbox.event (
    slot smallint NOT NULL DEFAULT outbox.current_slot(),
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    seq bigint NOT NULL DEFAULT nextval('outbox.event_seq'),
    {_EVENT_COLUMNS}
) PARTITION BY LIST (slot);

CREATE TABLE outbox.scheduled (
    {_EVENT_COLUMNS},
    due_at timestamptz NOT NULL,
    CHECK (ordering_key IS NULL),
    PRIMARY KEY (id)
);
CREATE INDEX scheduled_due ON outbox.scheduled (due_at);

CREATE TABLE outbox.ordering (
    tenant text NOT NULL,
    tier smallint NOT NULL,
    ordering_key text NOT NULL,
    number bigint NOT NULL,
    taken integer NOT NULL,
    previous_at timestamptz,
    last_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, tier, ordering_key)
) WITH (fillfactor = 70);

CREATE TABLE outbox.key (
    tenant text NOT NULL,
    idempotency_key text NOT NULL,
    fingerprint bytea NOT NULL,
    event_id uuid NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, idempotency_key)
);
CREATE INDEX key_expires ON outbox.key (expires_at);

CREATE TABLE outbox.consumer_group (
    group_name text PRIMARY KEY CHECK (group_name ~ '^[a-z0-9][a-z0-9_-]{{0,62}}$'),
    started_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE outbox.bucket (
    group_name text NOT NULL REFERENCES outbox.consumer_group ON DELETE CASCADE,
    bucket smallint NOT NULL CHECK (bucket BETWEEN 0 AND 63),
    token bigint NOT NULL DEFAULT 0,
    expires_at timestamptz NOT NULL DEFAULT '-infinity',
    lo pg_snapshot NOT NULL,
    -- No row that lo shows has a higher number, in whatever cluster lo is read: transaction numbers start again
    -- in another cluster, the sequence goes on.
    last_seq bigint NOT NULL DEFAULT coalesce(pg_sequence_last_value('outbox.event_seq'), 0),
    PRIMARY KEY (group_name, bucket)
) WITH (fillfactor = 50);

CREATE TABLE outbox.relay (
    token bigint PRIMARY KEY,
    is_able boolean NOT NULL,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE outbox.stream (
    group_name text NOT NULL REFERENCES outbox.consumer_group ON DELETE CASCADE,
    tier smallint NOT NULL,
    tenant text NOT NULL,
    tenant_hash bigint NOT NULL,
    bucket smallint NOT NULL,
    lo pg_snapshot NOT NULL,
    hi pg_snapshot NOT NULL,
    after bigint NOT NULL,
    z bigint NOT NULL,
    PRIMARY KEY (group_name, tier, tenant)
) WITH (fillfactor = 50);

CREATE TABLE outbox.deferred (
    group_name text NOT NULL REFERENCES outbox.consumer_group ON DELETE CASCADE,
    state text NOT NULL CHECK (state IN ('retry', 'dead', 'void')),
    category text NOT NULL,
    reason text NOT NULL,
    attempts integer NOT NULL,
    due_at timestamptz NOT NULL,
    first_failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Of the relay that is sending it, for as long as its bucket's lease carries the same.
    token bigint,
    {_EVENT_COLUMNS},
    CHECK (state <> 'void' OR ordering_key IS NOT NULL),
    PRIMARY KEY (group_name, id)
);
CREATE INDEX deferred_due ON outbox.deferred (due_at, id) WHERE state <> 'dead';
CREATE INDEX deferred_claimed ON outbox.deferred (token) WHERE token IS NOT NULL;

CREATE TABLE outbox.lane (
    group_name text NOT NULL REFERENCES outbox.consumer_group ON DELETE CASCADE,
    tier smallint NOT NULL,
    tenant text NOT NULL,
    declared_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    leaving_at timestamptz,
    quiet_at timestamptz CHECK (quiet_at IS NULL OR leaving_at IS NOT NULL),
    PRIMARY KEY (group_name, tier, tenant)
);
CREATE INDEX lane_leaving ON outbox.lane (group_name) WHERE leaving_at IS NOT NULL;

CREATE TABLE outbox.replay (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    part_of bigint REFERENCES outbox.replay ON DELETE CASCADE,
    group_name text NOT NULL REFERENCES outbox.consumer_group ON DELETE CASCADE,
    from_at timestamptz NOT NULL,
    to_at timestamptz NOT NULL,
    tenant text,
    type text,
    per_s integer NOT NULL CHECK (per_s > 0),
    events bigint NOT NULL,
    requested_by text NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz,
    is_cancelled boolean NOT NULL DEFAULT false,
    token bigint NOT NULL DEFAULT 0,
    due_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    after_hash bigint NOT NULL,
    after_seq bigint NOT NULL DEFAULT 0,
    last_hash bigint NOT NULL,
    published bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    tries integer NOT NULL DEFAULT 0,
    problem text
) WITH (fillfactor = 50);
CREATE INDEX replay_open ON outbox.replay (due_at) WHERE ended_at IS NULL;

CREATE TABLE outbox.retained (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    complete_since timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO outbox.retained DEFAULT VALUES;

CREATE TABLE outbox.audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor text NOT NULL,
    action text NOT NULL,
    group_name text,
    detail jsonb NOT NULL
);

CREATE TABLE outbox.origin (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    system_identifier bigint NOT NULL,
    database_oid oid NOT NULL,
    timeline text NOT NULL
);
"""

# A slot's last turn at being written to ends where the next slot's begins: half a second early, since the cast that
# names a row's slot rounds, as this one does.
_TURNS = """
CREATE FUNCTION outbox.slot_ended_at(target integer) RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT to_timestamp((n.turn - (n.turn - target) % n.slots + 1) * n.slot_seconds - 0.5)
    FROM (
        SELECT extract(epoch FROM clock_timestamp())::bigint / r.slot_seconds AS turn, r.slots, r.slot_seconds
        FROM outbox.ring() r
    ) n
$$;
"""

# Positions are snapshots of one cluster, one timeline and one database; elsewhere they mean nothing.
_ORIGIN = """
CREATE FUNCTION outbox.current_origin(OUT system_identifier bigint, OUT database_oid oid, OUT timeline text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT (SELECT c.system_identifier FROM pg_control_system() c),
           (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()),
           substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
$$;
INSERT INTO outbox.origin (system_identifier, database_oid, timeline) SELECT * FROM outbox.current_origin();

CREATE FUNCTION outbox.is_at_origin() RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
            SELECT FROM outbox.origin JOIN outbox.current_origin() USING (system_identifier, database_oid, timeline))
        AND NOT EXISTS (
            SELECT FROM outbox.bucket WHERE pg_snapshot_xmax(lo) > pg_snapshot_xmax(pg_current_snapshot()))
        AND NOT EXISTS (
            SELECT FROM outbox.stream WHERE pg_snapshot_xmax(hi) > pg_snapshot_xmax(pg_current_snapshot()))
$$;

-- A position of here could not be told apart from those of elsewhere.
CREATE FUNCTION outbox.check_origin() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT outbox.is_at_origin() THEN
        RAISE EXCEPTION 'want the database that the stored positions are of, got another'
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
END
$$;
"""

_GROUPS = """
CREATE FUNCTION outbox.add_group(name text) RETURNS void LANGUAGE sql AS $$
    SELECT outbox.check_origin();
    INSERT INTO outbox.consumer_group (group_name) VALUES (name);
    INSERT INTO outbox.bucket (group_name, bucket, lo)
        SELECT name, b, pg_current_snapshot() FROM generate_series(0, 63) b;
$$;

-- A group that starts in the past: its bases stand at the present, and each tenant with events since then has a
-- stream that is behind by those. A window that opens at 1:1: holds every row there ever was.
CREATE FUNCTION outbox.add_group(name text, since timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    present pg_snapshot;
    complete_since timestamptz;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'add_group: want read committed, got %', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    PERFORM outbox.check_origin();
    -- From here to our commit no slot is truncated; after it, our streams hold what they need.
    LOCK TABLE outbox.event IN ACCESS SHARE MODE;
    SELECT r.complete_since INTO complete_since FROM outbox.retained r;
    IF since < complete_since THEN
        RAISE EXCEPTION 'group %: want a start from which on the log keeps every event, % or later, got %',
            name, complete_since, since USING ERRCODE = 'datetime_field_overflow';
    END IF;
    IF since > clock_timestamp() THEN
        RAISE EXCEPTION 'group %: want a start that is not ahead, got %', name, since
            USING ERRCODE = 'datetime_field_overflow';
    END IF;
    present := pg_current_snapshot();
    INSERT INTO outbox.consumer_group (group_name, started_at) VALUES (name, since);
    INSERT INTO outbox.bucket (group_name, bucket, lo) SELECT name, b, present FROM generate_series(0, 63) b;
    INSERT INTO outbox.stream (group_name, tier, tenant, tenant_hash, bucket, lo, hi, after, z)
        SELECT name, tier, tenant, tenant_hash, bucket, '1:1:', present, min(seq) - 1, max(seq)
        FROM outbox.event
        WHERE ledger_at >= since AND pg_visible_in_snapshot(xid, present)
        GROUP BY tier, tenant, tenant_hash, bucket;
END
$$;
SELECT outbox.add_group('default');
"""

# The only way to remove rows from the log. Not even a relay that is wrong can drop an unpublished event: the check
# is made here, where no position can move and no group can come, and in statements that began after that was so.
# Every relay's poll waits for the slot's lock, so it is asked for only when all has been found well without it, and
# under it indexes answer, whatever the statistics say (the costs that make them do so would call for the JIT compiler).
# No lock is waited for: behind one that waits, everybody else would.
_TRUNCATE = """
CREATE FUNCTION outbox.is_slot_published(target integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET jit = off SET max_parallel_workers_per_gather = 0
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    partition text := format('outbox.event_%s', target);
    has_unpublished boolean;
BEGIN
    -- Every bucket of every group has a position, and has passed every row.
    EXECUTE format('
        SELECT (SELECT count(*) FROM outbox.bucket) < 64 * greatest(1, (SELECT count(*) FROM outbox.consumer_group))
            OR EXISTS (
                SELECT FROM (
                    SELECT lo::text::pg_snapshot AS lo, array_agg(DISTINCT bucket) AS buckets
                    FROM outbox.bucket GROUP BY lo::text
                ) p
                WHERE EXISTS (
                    SELECT FROM %1$s e WHERE e.xid >= pg_snapshot_xmax(p.lo) AND e.bucket = ANY (p.buckets))
                OR EXISTS (
                    SELECT FROM %1$s e
                    WHERE e.xid = ANY (ARRAY(SELECT pg_snapshot_xip(p.lo))) AND e.bucket = ANY (p.buckets)))',
        partition) INTO has_unpublished;
    IF has_unpublished THEN
        RETURN false;
    END IF;
    -- Every stream too. Streams can be many: first whether any of them can have anything here at all.
    EXECUTE format('
        SELECT EXISTS (
                SELECT FROM %1$s e
                WHERE e.xid >= (SELECT pg_snapshot_xmax(lo) FROM outbox.stream ORDER BY 1 LIMIT 1))
            OR EXISTS (
                SELECT FROM %1$s e
                WHERE e.xid = ANY (ARRAY(SELECT DISTINCT x FROM outbox.stream s, pg_snapshot_xip(s.lo) x)))',
        partition) INTO has_unpublished;
    IF has_unpublished THEN
        EXECUTE format('
            SELECT EXISTS (
                SELECT FROM outbox.stream s JOIN %1$s e ON e.tenant_hash = s.tenant_hash
                WHERE e.tier = s.tier AND e.tenant = s.tenant AND NOT pg_visible_in_snapshot(e.xid, s.lo))',
            partition) INTO has_unpublished;
    END IF;
    RETURN NOT has_unpublished;
END
$$;
REVOKE ALL ON FUNCTION outbox.is_slot_published(integer) FROM PUBLIC;

CREATE FUNCTION outbox.truncate_slot(target integer, keep_for interval) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    partition text := format('outbox.event_%s', target);
    ended_at timestamptz := outbox.slot_ended_at(target);
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'truncate_slot: want read committed, got %', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    IF target = outbox.current_slot() THEN
        RETURN 'current';
    END IF;
    IF keep_for IS NULL OR ended_at > clock_timestamp() - keep_for THEN
        RETURN 'retained';
    END IF;
    -- In another database than they are of, positions show rows that no group was sent.
    IF NOT outbox.is_at_origin() THEN
        RETURN 'foreign';
    END IF;
    IF NOT outbox.is_slot_published(target) THEN
        RETURN 'unpublished';
    END IF;
    BEGIN
        LOCK TABLE outbox.consumer_group, outbox.bucket, outbox.stream IN SHARE MODE NOWAIT;
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE NOWAIT', partition);
    EXCEPTION WHEN lock_not_available THEN
        RETURN 'busy';
    END;
    IF NOT outbox.is_slot_published(target) THEN
        RETURN 'unpublished';
    END IF;
    EXECUTE format('TRUNCATE %s', partition);
    -- Slots go in any order: the rows that are left do not tell from when on they are all there.
    UPDATE outbox.retained SET complete_since = greatest(complete_since, ended_at);
    RETURN 'truncated';
END
$$;
REVOKE ALL ON FUNCTION outbox.truncate_slot(integer, interval) FROM PUBLIC;
"""

# Every persist leaves dead versions of the positions, and while anybody holds a snapshot vacuum removes none of them.
# TRUNCATE does: to a snapshot from before it the table is empty, so nobody who reads positions may keep one. A dump
# would, so there is none while one runs. In one statement: a relay that froze between two would keep everybody out.
_REWRITE = "".join(
    f"""
CREATE FUNCTION outbox.rewrite_{table}() RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    kept outbox.{table}[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'rewrite_{table}: want read committed, got %', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    IF EXISTS (
        SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pg_dump'
    ) THEN
        RETURN 'busy';
    END IF;
    BEGIN
        LOCK TABLE outbox.{table} IN ACCESS EXCLUSIVE MODE NOWAIT;
        SELECT array_agg(t) INTO kept FROM outbox.{table} t;
        TRUNCATE outbox.{table};
        INSERT INTO outbox.{table} SELECT * FROM unnest(kept);
    EXCEPTION WHEN lock_not_available THEN
        -- The foreign key's check waits for a group's removal, which waits for us.
        RETURN 'busy';
    END;
    RETURN 'rewritten';
END
$$;
REVOKE ALL ON FUNCTION outbox.rewrite_{table}() FROM PUBLIC;
"""
    for table in ("bucket", "stream")
)


def upgrade() -> None:
    ring = Ring.from_context()
    op.execute(current_slot_function("outbox.current_slot()", ring))
    op.execute(ring_function("outbox.ring", ring))
    op.execute(_TURNS)
    op.execute(_TABLES)
    for slot in range(ring.slots):
        op.execute(
            f"CREATE TABLE outbox.event_{slot} PARTITION OF outbox.event FOR VALUES IN ({slot});\n"
            f'CREATE INDEX event_{slot}_xid ON outbox.event_{slot} (xid, tenant COLLATE "C", tier, seq);\n'
            f"CREATE UNIQUE INDEX event_{slot}_tenant ON outbox.event_{slot} (tenant_hash, seq);"
        )
    op.execute(_ORIGIN)
    op.execute(_GROUPS)
    op.execute(_TRUNCATE)
    op.execute(_REWRITE)


def downgrade() -> None:
    for table in (
        "event",
        "scheduled",
        "ordering",
        "key",
        "deferred",
        "stream",
        "bucket",
        "relay",
        "lane",
        "replay",
        "retained",
        "consumer_group",
        "audit",
        "origin",
    ):
        op.execute(f"DROP TABLE outbox.{table}")
    for function in (
        "rewrite_stream()",
        "rewrite_bucket()",
        "truncate_slot(integer, interval)",
        "is_slot_published(integer)",
        "check_origin()",
        "is_at_origin()",
        "add_group(text)",
        "add_group(text, timestamptz)",
        "current_origin()",
        "slot_ended_at(integer)",
        "ring()",
        "current_slot()",
    ):
        op.execute(f"DROP FUNCTION outbox.{function}")
    op.execute("DROP SEQUENCE outbox.event_seq; DROP SEQUENCE outbox.token")
