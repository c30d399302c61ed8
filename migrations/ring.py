"""The two rings of partitions: how many slots each has and how long one lasts.

A slot's number is ``(epoch / slot_seconds) mod slots``. Both numbers are baked into the database when a
chain is first applied, so no statement depends on a process's setting.
"""

from dataclasses import dataclass

from alembic import context


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """How many slots, and how many seconds one is written to before the next."""

    slots: int
    slot_seconds: int

    @staticmethod
    def from_context() -> "Ring":
        """The ring that the caller of this migration asked for."""
        ring = context.config.attributes["ring"]
        assert isinstance(ring, Ring)  # noqa: S101 - set by outbox_admin.migrate alone
        return ring


LOG_RING = Ring(slots=16, slot_seconds=12 * 3600)
LEDGER_RING = Ring(slots=16, slot_seconds=24 * 3600)


def current_slot_function(signature: str, ring: Ring) -> str:
    """The SQL that creates the function naming the slot written to now."""
    return (  # two whole numbers and a name of our own
        f"CREATE FUNCTION {signature} RETURNS smallint LANGUAGE sql STABLE AS $$\n"
        f"    SELECT ((extract(epoch FROM statement_timestamp())::bigint / {ring.slot_seconds})"
        f" % {ring.slots})::smallint\n$$;"
    )


def ring_function(name: str, ring: Ring) -> str:
    """The SQL that creates the function telling the ring's shape."""
    return (  # two whole numbers and a name of our own
        f"CREATE FUNCTION {name}(OUT slots integer, OUT slot_seconds integer) LANGUAGE sql IMMUTABLE AS $$\n"
        f"    SELECT {ring.slots}, {ring.slot_seconds}\n$$;"
    )
