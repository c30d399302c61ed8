"""Alembic migrations: two chains, outbox and consumer, each with its own version table."""
