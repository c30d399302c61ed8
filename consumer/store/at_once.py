"""BEGIN and the transaction's first statement in one round trip.

The driver sends BEGIN by itself and waits for the answer; on the hot path that is a third of all waiting. Here both
go out together, the statement as an EXECUTE of what the session has prepared. The driver's public ``pq`` level does
it; ``psycopg.generators.execute`` is the one thing beside, and a test holds it.
"""

from collections.abc import Sequence
from typing import Final
from weakref import WeakKeyDictionary

import psycopg
from psycopg import errors, generators
from psycopg.pq import Escaping, ExecStatus, TransactionStatus

from consumer.store.stored import Connection

_BEGIN: Final = b"BEGIN ISOLATION LEVEL READ COMMITTED;"


class FirstStatement:
    """One statement, prepared in each session that uses it. *types* are those of ``$1`` and so on, in order."""

    def __init__(self, *, name: str, types: str, body: bytes) -> None:
        self._prepare = f"PREPARE {name} ({types}) AS ".encode() + body
        self._execute = f"EXECUTE {name} (".encode()
        self._prepared: WeakKeyDictionary[Connection, bool] = WeakKeyDictionary()

    async def can_run(self, connection: Connection) -> bool:
        """Whether ``run`` may be called: *connection* is idle, and its session keeps what is prepared.

        A pooler that hands each transaction to another session makes that impossible, which shows once.
        """
        if connection.pgconn.transaction_status != TransactionStatus.IDLE:
            return False
        if connection not in self._prepared:
            await connection.execute(self._prepare)
            await connection.rollback()  # what is prepared stays
            self._prepared[connection] = True
        return self._prepared[connection]

    async def run(self, connection: Connection, values: Sequence[str]) -> tuple[str, ...] | None:
        """Begin a transaction, run the statement in it and return its first row, as text.

        Raises:
            psycopg.Error: as the driver's ``execute`` does.
        """
        encoding = connection.info.encoding
        escaping = Escaping(connection.pgconn)
        literals = b",".join([bytes(escaping.escape_literal(value.encode(encoding))) for value in values])
        async with connection.lock:
            connection.pgconn.send_query(_BEGIN + self._execute + literals + b")")
            results = await connection.wait(generators.execute(connection.pgconn))
        last = results[-1]
        if last.status != ExecStatus.TUPLES_OK:
            error = errors.error_from_result(last, encoding)
            if isinstance(error, psycopg.errors.InvalidSqlStatementName):
                self._prepared[connection] = False
            raise error
        if last.ntuples == 0:
            return None
        row = [last.get_value(0, column) for column in range(last.nfields)]
        return tuple("" if value is None else value.decode(encoding) for value in row)
