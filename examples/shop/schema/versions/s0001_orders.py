"""Orders, lines and invoices, each tenant's apart; and the role that app and consumer run as."""

import os
from typing import TYPE_CHECKING, cast

from alembic import op
from psycopg import sql
from sqlalchemy import make_url

if TYPE_CHECKING:
    from psycopg import Connection

revision = "s0001"
down_revision = None

TABLES = """
CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id text NOT NULL DEFAULT current_setting('app.current_tenant_id', true) CHECK (tenant_id <> ''),
    idempotency_key text NOT NULL,
    customer text NOT NULL,
    UNIQUE (tenant_id, idempotency_key),
    UNIQUE (tenant_id, id)
);
CREATE TABLE order_lines (
    tenant_id text NOT NULL DEFAULT current_setting('app.current_tenant_id', true),
    order_id bigint,
    number integer,
    article text NOT NULL,
    quantity integer NOT NULL,
    unit_cents integer NOT NULL,
    PRIMARY KEY (order_id, number),
    FOREIGN KEY (tenant_id, order_id) REFERENCES orders (tenant_id, id)
);
CREATE TABLE invoices (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id text NOT NULL DEFAULT current_setting('app.current_tenant_id', true),
    order_id bigint NOT NULL,
    total_cents bigint NOT NULL,
    FOREIGN KEY (tenant_id, order_id) REFERENCES orders (tenant_id, id)
);
"""

# A policy without WITH CHECK holds for what is written as for what is read. Without a tenant it shows nothing. FORCE:
# the owner too.
POLICY = """
ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY of_tenant ON {table} USING (tenant_id = current_setting('app.current_tenant_id', true));
"""

# What an app needs to emit, and what a consumer needs, as the tables' owner grants it.
GRANTS = """
GRANT SELECT, INSERT, UPDATE, DELETE ON orders, order_lines, invoices TO {role};

GRANT USAGE ON SCHEMA outbox TO {role};
GRANT USAGE ON SEQUENCE outbox.event_seq TO {role};
GRANT INSERT ON outbox.event TO {role};
GRANT SELECT, INSERT, UPDATE ON outbox.ordering TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.key, outbox.scheduled TO {role};

GRANT USAGE ON SCHEMA consumer TO {role};
GRANT USAGE ON ALL SEQUENCES IN SCHEMA consumer TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA consumer TO {role};
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA consumer TO {role};
ALTER DEFAULT PRIVILEGES IN SCHEMA consumer GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {role};
ALTER DEFAULT PRIVILEGES IN SCHEMA consumer GRANT USAGE ON SEQUENCES TO {role};
"""


def upgrade() -> None:
    """Make the tables, and let in the user of ``DATABASE_URL``, who owns none of them and is bound by every policy."""
    op.execute(TABLES)
    for table in ("orders", "order_lines", "invoices"):
        op.execute(POLICY.format(table=table))
    user = make_url(os.environ["DATABASE_URL"])
    role = sql.Identifier(user.username or "")
    driver = cast("Connection", op.get_bind().connection.driver_connection)
    found = driver.execute(
        "SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = %s", (user.username,)
    ).fetchone()
    if found is None:
        driver.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} NOSUPERUSER NOBYPASSRLS").format(role, sql.Literal(user.password))
        )
    elif found[0]:
        raise ValueError(f"DATABASE_URL: want a role that policies bind, got {user.username}, which is exempt")
    driver.execute(sql.SQL(GRANTS).format(role=role))


def downgrade() -> None:
    """Remove the tables; the role may serve others by now, and stays."""
    op.execute("DROP TABLE invoices, order_lines, orders")
