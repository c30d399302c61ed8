"""Clusters that are copies of another: standbys, and what is restored from files."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from outbox_admin.embedded import PostgresNode


@contextmanager
def copied(primary: PostgresNode, *, signal: Literal["standby", "recovery"]) -> Iterator[PostgresNode]:
    """A running node with the files of *primary*, which stands still for a moment.

    *signal*: it stays a ``standby`` until promoted, or its ``recovery`` ends at once, where the files end. It has
    its primary's password; see ``same``.
    """
    node = PostgresNode(binaries=primary.binaries, durable=False, settings={"restore_command": "false"})
    try:
        primary.stop()
        for path in node.data.iterdir():
            subprocess.run(["rm", "-rf", str(path)], check=True)
        subprocess.run(["cp", "-a", f"{primary.data}/.", str(node.data)], check=True)
        (node.data / f"{signal}.signal").touch()
        primary.start()
        node.start()
        yield node
    finally:
        node.close()


def same(url: str, there: PostgresNode, *, here: PostgresNode) -> str:
    """The URL in the copy *there* of the database at *url* in *here*."""
    return url.replace(f":{here.port}/", f":{there.port}/")
