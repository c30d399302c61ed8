"""The schema: whether each chain of migrations stands at its newest revision."""

from collections.abc import Sequence

from outbox_admin.doctor.facts import Chain
from outbox_admin.doctor.finding import Finding, ok, problem


def judge(chains: Sequence[Chain]) -> list[Finding]:
    """One line for each chain that is behind, one for all if none is."""
    behind = [chain for chain in chains if chain.current != chain.newest]
    if not behind:
        return [ok("schema", ", ".join(f"{chain.name} at {chain.newest}" for chain in chains))]
    return [
        problem(
            "schema",
            f"{one.name} is at {one.current or 'nothing that this role may read'}, this version wants {one.newest}",
            f"outbox migrate --chain {one.name}",
        )
        for one in behind
    ]
