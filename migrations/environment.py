"""How the chains run: over a given connection, or as SQL text. Each has its own version table."""

from alembic import context


def run(schema: str) -> None:
    """Run the chain whose tables live in *schema*, as Alembic's configuration asks."""
    connection = context.config.attributes.get("connection")
    if connection is None:
        context.configure(
            dialect_name="postgresql",
            dialect_opts={"paramstyle": "named"},  # with the driver's own, every % in a function would be doubled
            as_sql=True,
            literal_binds=True,
            version_table_schema=schema,
        )
        with context.begin_transaction():
            # Alembic creates its version table first, and needs the schema for it.
            context.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            context.run_migrations()
        return
    connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    context.configure(connection=connection, version_table_schema=schema)
    with context.begin_transaction():
        context.run_migrations()
