"""Arrays that are written by us are read by PostgreSQL as the values they were made of."""

from uuid import UUID, uuid4

import pytest

from consumer.store.stored import Connection
from outbox.shell.arrays import numbers, texts, uuids

_NASTY = ["", "NULL", " spaces ", 'a "quoted" one', "back\\slash", '\\"', "{braces}", "a,b", "naïve 世界 🙂", "\n\t"]


async def read(connection: Connection, array: str, kind: str) -> list[object]:
    cursor = await connection.execute(f"SELECT %s::{kind}[]", (array,))
    (row,) = await cursor.fetchall()
    found: list[object] = row[0]
    return found


@pytest.mark.parametrize("values", [_NASTY, _NASTY * 50, []], ids=["each", "many", "none"])
async def test_texts_are_read_as_they_were(connection: Connection, values: list[str]) -> None:
    assert await read(connection, texts(values), "text") == values


async def test_ids_and_numbers_are_read_as_they_were(connection: Connection) -> None:
    ids = [UUID(int=0), UUID(int=2**128 - 1), uuid4()]
    assert await read(connection, uuids(ids), "uuid") == ids
    whole = [-(2**63), 0, 2**63 - 1]
    assert await read(connection, numbers(whole), "bigint") == whole
