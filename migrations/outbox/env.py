"""Alembic's entry to the ``outbox`` chain."""

from migrations.environment import run

run("outbox")
