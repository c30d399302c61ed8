"""Queues, what waits in them, and the leases of those who have some of it in hand."""

from alembic import op

revision = "b0001"
down_revision = None
branch_labels = None
depends_on = None

# A message's row is inserted, claimed in place and deleted: with room left in its page, and no index on what a claim
# writes, a claim adds nothing to any index. Dead rows are few as long as vacuum comes often, and it may hurry: it has
# nothing to do but what is at the queues' heads. It never gives the file's end back, which would lock everybody out.
_TABLES = """
CREATE TABLE outbox_broker.queue (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE CHECK (octet_length(name) BETWEEN 1 AND 255),
    arguments jsonb NOT NULL,
    exchange text,
    routing_key text,
    CHECK ((exchange IS NULL) = (routing_key IS NULL))
);
CREATE UNIQUE INDEX queue_bound ON outbox_broker.queue (exchange, routing_key) WHERE exchange IS NOT NULL;

CREATE SEQUENCE outbox_broker.message_seq AS bigint CACHE 1;
CREATE TABLE outbox_broker.message (
    queue_id bigint NOT NULL,
    seq bigint NOT NULL DEFAULT nextval('outbox_broker.message_seq'),
    token bigint,
    deliveries integer NOT NULL DEFAULT 0,
    routing_key text NOT NULL,
    message_id text NOT NULL,
    type text NOT NULL,
    app_id text NOT NULL,
    content_type text NOT NULL,
    headers json NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (queue_id, seq)
) WITH (
    fillfactor = 60,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_limit = 2000,
    autovacuum_vacuum_cost_delay = 1,
    vacuum_truncate = false,
    toast.autovacuum_vacuum_scale_factor = 0.01,
    toast.autovacuum_vacuum_threshold = 2000,
    toast.vacuum_truncate = false
);

CREATE SEQUENCE outbox_broker.lease_token AS bigint;
CREATE TABLE outbox_broker.lease (
    token bigint PRIMARY KEY DEFAULT nextval('outbox_broker.lease_token'),
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);
"""


def upgrade() -> None:
    op.execute(_TABLES)


def downgrade() -> None:
    for table in ("lease", "message", "queue"):
        op.execute(f"DROP TABLE outbox_broker.{table}")
    for sequence in ("lease_token", "message_seq"):
        op.execute(f"DROP SEQUENCE outbox_broker.{sequence}")
