"""The demo, as a newcomer runs it and as an operator does."""

import re

import pytest

from tests.scenarios.world import World
from tests.support.processes import Processes

# Alone each takes under half a minute.
pytestmark = pytest.mark.timeout(300)

_VERDICT = re.compile(r"committed ([\d,]+), handled ([\d,]+), duplicates suppressed [\d,]+, lost 0")


async def test_the_demo_needs_nothing_but_the_package_and_loses_nothing(processes: Processes) -> None:
    demo = processes.start("outbox", "demo")
    assert await demo.ended(deadline_s=280.0) == 0, demo.output
    _assert_good(demo.output)
    assert "queues in it" in demo.output


async def test_the_demo_runs_against_given_servers(processes: Processes, world: World) -> None:
    settings = {"DATABASE_URL": world.database_url, "RABBITMQ_URL": world.rabbitmq_url}
    demo = processes.start("outbox", "demo", settings=settings)
    assert await demo.ended(deadline_s=280.0) == 0, demo.output
    _assert_good(demo.output)
    assert world.value("SELECT count(*) FROM demo.placed_order") == world.value(
        "SELECT count(DISTINCT order_id) FROM demo.shipment"
    )
    assert world.value("SELECT count(*) FROM demo.shipment") == world.value("SELECT count(*) FROM demo.placed_order")
    assert world.value("SELECT count(*) FROM outbox.bucket WHERE expires_at > clock_timestamp()") == 0
    assert world.value("SELECT count(*) FROM consumer.incarnation") == 0


def _assert_good(output: str) -> None:
    verdict = _VERDICT.fullmatch(output.splitlines()[-1])
    assert verdict is not None, output
    assert verdict[1] == verdict[2]
    for line in ("relay killed in mid-batch", "consumer killed in mid-batch"):
        assert line in output
