"""Databases of a test's own, made in milliseconds from a template."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from tests.support.services import Postgres, fresh_name

_DROP_S = 60.0


@contextmanager
def fresh_database(server: Postgres, what: str, *, template: str = "template0") -> Iterator[str]:
    """The URL of a new database on *server*, a copy of *template*; dropped at the end with all that uses it."""
    name = fresh_name(what)
    make = sql.SQL("create database {} template {} encoding 'UTF8'").format(
        sql.Identifier(name), sql.Identifier(template)
    )
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(make)
    try:
        yield server.dsn(name)
    finally:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            _forget_prepared(connection, server.dsn(name), name)
            _drop(connection, name)


def _drop(connection: psycopg.Connection, name: str) -> None:
    drop = sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
    until = time.monotonic() + _DROP_S
    while True:
        try:
            connection.execute(drop)
            return
        except psycopg.errors.ObjectInUse:
            # The server ends all sessions and waits for five seconds, which a busy machine may not find enough.
            if time.monotonic() > until:
                raise


def _forget_prepared(connection: psycopg.Connection, dsn: str, name: str) -> None:
    """Roll back the two-phase transactions a test left: a database that has one cannot be dropped."""
    left = connection.execute("select gid from pg_prepared_xacts where database = %s", (name,)).fetchall()
    if left:
        with psycopg.connect(dsn, autocommit=True) as inside:
            for (gid,) in left:
                inside.execute(sql.SQL("rollback prepared {}").format(sql.Literal(gid)))
