"""Alembic's entry to the ``broker`` chain."""

from migrations.environment import run

run("outbox_broker")
