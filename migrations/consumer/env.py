"""Alembic's entry to the ``consumer`` chain."""

from migrations.environment import run

run("consumer")
