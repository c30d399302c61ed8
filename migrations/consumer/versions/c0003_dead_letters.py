"""Dead letters: what became of them, who owns a group of them, who may see them; versions that only some code knows."""

from alembic import op

revision = "c0003"
down_revision = "c0002"
branch_labels = None
depends_on = None

_COLUMNS = """
-- Told without reading the payload, which not everybody may.
ALTER TABLE consumer.dead ADD COLUMN payload_bytes integer NOT NULL GENERATED ALWAYS AS (octet_length(body)) STORED;
CREATE INDEX dead_of_event ON consumer.dead (group_name, event_id, id) WHERE event_id IS NOT NULL;
CREATE INDEX dead_fingerprint ON consumer.dead (group_name, fingerprint) WHERE resolution IS NULL;
CREATE INDEX dead_unknown ON consumer.dead (group_name, type, (headers ->> 'ce-dataversion'), id)
    WHERE resolution IS NULL AND category IN ('unknown_type', 'unknown_version');

-- A row that only code which knows this version of its type should take: other code would bury it again.
ALTER TABLE consumer.work ADD COLUMN needs_version integer;

-- Whatever name somebody gave, the role is the one that the server let in.
ALTER TABLE consumer.audit ADD COLUMN role_name name NOT NULL DEFAULT session_user;

CREATE TABLE consumer.dead_owner (
    group_name text NOT NULL,
    fingerprint text NOT NULL,
    owner text NOT NULL,
    assigned_by text NOT NULL,
    assigned_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (group_name, fingerprint)
);
CREATE TABLE consumer.dead_operator (
    role_name name NOT NULL,
    tenant text NOT NULL,
    granted_by text NOT NULL,
    granted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (role_name, tenant)
);
"""

# Who may write work rows, as owner and consumers do, sees every tenant's letters; everybody else those of the tenants
# that were granted to a role of theirs, and without one none. Functions with the owner's rights ask the same of the
# role that called them, which current_user no longer names there.
_OPERATORS = """
CREATE FUNCTION consumer.asking_role() RETURNS name
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(nullif(current_setting('role'), 'none')::name, session_user)
$$;
CREATE FUNCTION consumer.operates_all() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT has_table_privilege(consumer.asking_role(), 'consumer.work', 'INSERT')
$$;
CREATE FUNCTION consumer.operated_tenants() RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT o.tenant FROM consumer.dead_operator o JOIN pg_roles r ON r.rolname = o.role_name
    WHERE pg_has_role(consumer.asking_role(), r.oid, 'USAGE')
$$;
CREATE FUNCTION consumer.operates(of_tenant text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT consumer.operates_all() OR of_tenant IN (SELECT consumer.operated_tenants())
$$;

ALTER TABLE consumer.dead ENABLE ROW LEVEL SECURITY;
CREATE POLICY of_operated_tenants ON consumer.dead
    USING ((SELECT consumer.operates_all()) OR tenant = ANY (ARRAY(SELECT consumer.operated_tenants())));
ALTER TABLE consumer.dead_trace ENABLE ROW LEVEL SECURITY;
CREATE POLICY of_operated_tenants ON consumer.dead_trace
    USING ((SELECT consumer.operates_all()) OR EXISTS (SELECT FROM consumer.dead d WHERE d.id = dead_id));
REVOKE ALL ON consumer.dead_operator FROM PUBLIC;
"""

# What an operator does, with the owner's rights: an operator's role can write neither work rows, which would be
# handled as events, nor letters. One transaction each, with its row in the audit.
_DECISIONS = """
CREATE FUNCTION consumer.is_done(of_group text, of_event uuid, of_handler text, of_time timestamptz) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM consumer.ledger l, consumer.ring() r
        WHERE l.slot = (floor(extract(epoch FROM of_time) / r.slot_seconds)::bigint % r.slots)::smallint
          AND l.event_id = of_event AND l.group_name = of_group AND l.handler = of_handler
          AND l.state IN ('done', 'skipped'))
$$;

-- Whether what was replayed is still to be handled.
CREATE FUNCTION consumer.is_replay_pending(of_letter bigint) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM consumer.dead d JOIN consumer.work w ON w.group_name = d.group_name AND w.event_id = d.event_id
        WHERE d.id = of_letter AND consumer.operates(d.tenant))
$$;

CREATE FUNCTION consumer.resolve_dead(letters jsonb, with_resolution text, by_actor text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted bigint := jsonb_array_length(letters);
    found bigint;
BEGIN
    UPDATE consumer.dead d
    SET resolution = with_resolution, resolved_at = clock_timestamp(), resolved_by = by_actor
    FROM jsonb_to_recordset(letters) AS r (id bigint, handlers text[])
    WHERE d.id = r.id AND d.resolution IS NULL AND d.handlers = r.handlers;
    GET DIAGNOSTICS found = ROW_COUNT;
    IF found <> wanted THEN
        RAISE EXCEPTION 'dead letters: want % unchanged, got %; nothing was done, try again', wanted, found
            USING ERRCODE = 'serialization_failure';
    END IF;
END
$$;

-- One operator at a time: two who decide about the same letters would otherwise wait for each other. No letter is
-- locked before all work rows are written, as a process that buries an event writes in that order too.
CREATE FUNCTION consumer.replay_dead(of_group text, letter_ids bigint[], by_actor text, per_s double precision)
RETURNS TABLE (letter bigint, refused text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_column
DECLARE
    letters jsonb;
    taken uuid[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('fairpost.dead', 0));
    SELECT coalesce(jsonb_agg(jsonb_build_object(
            'id', d.id, 'event', d.event_id, 'handlers', d.handlers, 'left', to_be.names, 'place', d.place,
            'because', CASE
                WHEN d.event_id IS NULL THEN 'its envelope could not be read: there is no event'
                WHEN cardinality(d.handlers) > 0 AND to_be.names IS NULL
                    THEN 'the ledger says that it was handled meanwhile'
            END) ORDER BY d.event_id), '[]')
    INTO letters
    FROM (
        SELECT e.*, row_number() OVER (ORDER BY e.id) - 1 AS place FROM consumer.dead e
        WHERE e.group_name = of_group AND e.id = ANY (letter_ids) AND e.resolution IS NULL
          AND consumer.operates(e.tenant)
    ) d
    CROSS JOIN LATERAL (
        SELECT array_agg(name ORDER BY name) AS names FROM unnest(d.handlers) name
        WHERE NOT consumer.is_done(d.group_name, d.event_id, name, d.ledger_at)
    ) to_be;

    -- Another handler of the event may have a work row of its own: it is tried again together with those that died.
    WITH written AS (
        INSERT INTO consumer.work AS w (
            group_name, event_id, reason, due_at, attempts, handlers, needs_version, tier, tenant, type, ordering_key,
            key_number, ledger_at, message_id, app_id, content_type, headers, body)
        SELECT d.group_name, d.event_id, 'replay',
               clock_timestamp() + make_interval(secs => coalesce(r.place / nullif(per_s, 0), 0)), 0, r."left",
               CASE WHEN d.category IN ('unknown_type', 'unknown_version')
                     AND d.headers ->> 'ce-dataversion' ~ '^[0-9]{1,9}$'
                   THEN (d.headers ->> 'ce-dataversion')::integer END,
               d.tier, d.tenant, d.type, d.ordering_key, d.key_number, d.ledger_at, d.message_id, d.app_id,
               d.content_type, d.headers, d.body
        FROM jsonb_to_recordset(letters) AS r (id bigint, because text, place bigint, "left" text[])
        JOIN consumer.dead d USING (id)
        WHERE r.because IS NULL
        ORDER BY d.event_id
        ON CONFLICT (group_name, event_id) DO UPDATE SET
            reason = 'replay', due_at = excluded.due_at, attempts = 0, last_error = NULL,
            needs_version = excluded.needs_version,
            handlers = CASE WHEN w.handlers IS NULL OR excluded.handlers IS NULL THEN NULL
                ELSE ARRAY(SELECT n FROM unnest(w.handlers || excluded.handlers) n GROUP BY n ORDER BY n) END
        WHERE w.owner IS NULL
        RETURNING w.event_id
    )
    SELECT coalesce(array_agg(event_id), '{}') INTO taken FROM written;

    PERFORM consumer.resolve_dead(
        coalesce((SELECT jsonb_agg(r) FROM jsonb_array_elements(letters) r
                  WHERE r ->> 'because' IS NULL AND (r ->> 'event')::uuid = ANY (taken)), '[]'),
        'replayed', by_actor);
    RETURN QUERY SELECT * FROM consumer.decided_dead(of_group, 'dead.replay', by_actor, letters, taken);
END
$$;

-- A letter with an ordering key becomes a void work row, which passes the gate in its turn as the event would have.
-- Where other handlers of the event have a work row, that stays as it is, but locked: who claims it afterwards sees
-- that the letter is gone, and moves the key on.
CREATE FUNCTION consumer.discard_dead(of_group text, letter_ids bigint[], by_actor text)
RETURNS TABLE (letter bigint, refused text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_column
DECLARE
    letters jsonb;
    taken uuid[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('fairpost.dead', 0));
    SELECT coalesce(jsonb_agg(jsonb_build_object(
            'id', d.id, 'event', d.event_id, 'handlers', d.handlers,
            'needs_void', d.ordering_key IS NOT NULL AND d.event_id IS NOT NULL) ORDER BY d.event_id), '[]')
    INTO letters
    FROM consumer.dead d
    WHERE d.group_name = of_group AND d.id = ANY (letter_ids) AND d.resolution IS NULL AND consumer.operates(d.tenant);

    WITH written AS (
        INSERT INTO consumer.work AS w (
            group_name, event_id, reason, due_at, attempts, handlers, tier, tenant, type, ordering_key, key_number,
            ledger_at, message_id, app_id, content_type, headers, body)
        SELECT d.group_name, d.event_id, 'replay', clock_timestamp(), 0, '{}', d.tier, d.tenant, d.type,
               d.ordering_key, d.key_number, d.ledger_at, d.message_id, d.app_id, d.content_type, d.headers, d.body
        FROM jsonb_to_recordset(letters) AS r (id bigint, needs_void boolean)
        JOIN consumer.dead d USING (id)
        WHERE r.needs_void
        ORDER BY d.event_id
        ON CONFLICT (group_name, event_id) DO UPDATE SET due_at = w.due_at WHERE w.owner IS NULL
        RETURNING w.event_id
    )
    SELECT coalesce(array_agg(event_id), '{}') INTO taken FROM written;
    SELECT taken || coalesce(array_agg((r ->> 'event')::uuid), '{}') INTO taken
    FROM jsonb_array_elements(letters) r WHERE NOT (r ->> 'needs_void')::boolean;

    PERFORM consumer.resolve_dead(
        coalesce((SELECT jsonb_agg(r) FROM jsonb_array_elements(letters) r
                  WHERE r ->> 'event' IS NULL OR (r ->> 'event')::uuid = ANY (taken)), '[]'),
        'discarded', by_actor);
    RETURN QUERY SELECT * FROM consumer.decided_dead(of_group, 'dead.discard', by_actor, letters, taken);
END
$$;

-- What became of each of the letters, told and written down.
CREATE FUNCTION consumer.decided_dead(of_group text, of_action text, by_actor text, letters jsonb, taken uuid[])
RETURNS TABLE (letter bigint, refused text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    decided jsonb;
BEGIN
    SELECT coalesce(jsonb_object_agg(r ->> 'id', coalesce(r ->> 'because', CASE
            WHEN r ->> 'event' IS NOT NULL AND NOT (r ->> 'event')::uuid = ANY (taken)
                THEN 'a process is handling this event; try again when it is through' END)), '{}')
    INTO decided FROM jsonb_array_elements(letters) r;
    INSERT INTO consumer.audit (actor, action, group_name, detail)
    SELECT by_actor, of_action, of_group, jsonb_build_object(
        'ids', coalesce((SELECT jsonb_agg(key::bigint ORDER BY key::bigint)
                         FROM jsonb_each_text(decided) WHERE value IS NULL), '[]'),
        'refused', coalesce((SELECT jsonb_object_agg(key, value)
                             FROM jsonb_each_text(decided) WHERE value IS NOT NULL), '{}'));
    RETURN QUERY SELECT key::bigint, value FROM jsonb_each_text(decided) ORDER BY key::bigint;
END
$$;

-- Nobody's if no owner is given. Who sees a letter of the group of letters may say whose it is.
CREATE FUNCTION consumer.own_dead(of_group text, of_fingerprint text, to_owner text, by_actor text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found bigint;
BEGIN
    SELECT count(*) INTO found FROM consumer.dead d
    WHERE d.group_name = of_group AND d.fingerprint = of_fingerprint AND d.resolution IS NULL
      AND consumer.operates(d.tenant);
    IF found = 0 THEN
        RETURN 0;
    END IF;
    IF to_owner IS NULL THEN
        DELETE FROM consumer.dead_owner o WHERE o.group_name = of_group AND o.fingerprint = of_fingerprint;
    ELSE
        INSERT INTO consumer.dead_owner AS o (group_name, fingerprint, owner, assigned_by)
        VALUES (of_group, of_fingerprint, to_owner, by_actor)
        ON CONFLICT (group_name, fingerprint) DO UPDATE
            SET owner = excluded.owner, assigned_by = excluded.assigned_by, assigned_at = clock_timestamp();
    END IF;
    INSERT INTO consumer.audit (actor, action, group_name, detail)
    VALUES (by_actor, 'dead.own', of_group, jsonb_build_object('fingerprint', of_fingerprint, 'owner', to_owner));
    RETURN found;
END
$$;
REVOKE ALL ON FUNCTION consumer.resolve_dead(jsonb, text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION consumer.decided_dead(text, text, text, jsonb, uuid[]) FROM PUBLIC;
"""

_FUNCTIONS = (
    "own_dead(text, text, text, text)",
    "discard_dead(text, bigint[], text)",
    "replay_dead(text, bigint[], text, double precision)",
    "decided_dead(text, text, text, jsonb, uuid[])",
    "resolve_dead(jsonb, text, text)",
    "is_replay_pending(bigint)",
    "is_done(text, uuid, text, timestamptz)",
    "operates(text)",
    "operated_tenants()",
    "operates_all()",
    "asking_role()",
)


def upgrade() -> None:
    op.execute(_COLUMNS)
    op.execute(_OPERATORS)
    op.execute(_DECISIONS)


def downgrade() -> None:
    for table in ("dead", "dead_trace"):
        op.execute(f"DROP POLICY of_operated_tenants ON consumer.{table}")
        op.execute(f"ALTER TABLE consumer.{table} DISABLE ROW LEVEL SECURITY")
    for function in _FUNCTIONS:
        op.execute(f"DROP FUNCTION consumer.{function}")
    op.execute("DROP TABLE consumer.dead_operator, consumer.dead_owner")
    op.execute("ALTER TABLE consumer.audit DROP COLUMN role_name")
    op.execute("ALTER TABLE consumer.work DROP COLUMN needs_version")
    op.execute("DROP INDEX consumer.dead_of_event, consumer.dead_fingerprint, consumer.dead_unknown")
    op.execute("ALTER TABLE consumer.dead DROP COLUMN payload_bytes")
