"""Several worker processes under one supervisor: what ends one of them costs the others nothing."""

import os
import signal
from pathlib import Path

from outbox_admin.leash import descendants, is_alive
from tests.scenarios.conftest import Start
from tests.scenarios.dangerous import an_order
from tests.scenarios.world import Service
from tests.support.engine import Rig
from tests.support.wait import until


def workers(service: Service) -> dict[int, int]:
    """The pid of the last process in each worker's place."""
    return {int(str(one["worker"])): int(str(one["pid"])) for one in service.said("worker started")}


async def until_all_ready(service: Service, count: int) -> None:
    async def are_ready() -> bool:
        status, text = await service.ask("/ready")
        return status == 200 and f"{count} of {count} ready" in text

    await until(are_ready, deadline_s=30.0, every_s=0.1, what=f"{count} workers to be ready")


async def test_a_killed_worker_costs_the_others_nothing_and_is_replaced(rig: Rig, start: Start, go: Path) -> None:
    """celery/celery#1628"""
    fleet = start(2)
    await until_all_ready(fleet, 2)
    await rig.publish(an_order(1, "wait", tenant="slow"))
    await fleet.process.line('"handling"')
    (running,) = fleet.said("handling")
    victim = running["worker"]
    pids = workers(fleet)
    os.kill(pids[int(str(victim))], signal.SIGKILL)
    other = next(pid for number, pid in pids.items() if number != victim)
    await rig.publish(*(an_order(number, tenant=f"t{number % 3}") for number in range(2, 32)))
    await rig.until(lambda: rig.count("effect") == 30, what="the others to be handled")
    assert is_alive(other)
    go.touch()
    await rig.until(lambda: rig.count("effect") == 31, what="what the dead one had in hand to come again")
    await until_all_ready(fleet, 2)
    assert len(fleet.said("worker died", worker=victim, exit_code=-signal.SIGKILL)) == 1
    assert await fleet.metric(f'outbox_consumer_worker_restarts_total{{worker="{victim}"}}') == 1
    settled = [await fleet.metric(f'outbox_consumer_settled_total{{outcome="done",worker="{n}"}}') for n in (1, 2)]
    assert sum(settled) > 0
    assert await fleet.end() == 0
    assert not [pid for pid in workers(fleet).values() if is_alive(pid)]


async def test_a_signal_to_every_process_drains_once_and_a_second_one_ends_at_once(
    rig: Rig, start: Start, go: Path
) -> None:
    fleet = start(2)
    await until_all_ready(fleet, 2)
    await rig.publish(an_order(1, "wait"))
    await fleet.process.line('"handling"')
    # As systemd does it: supervisor and workers alike.
    for pid in (fleet.process.pid, *workers(fleet).values()):
        os.kill(pid, signal.SIGTERM)
    await fleet.until_unready()
    await fleet.process.line('"draining"', times=3)
    assert rig.count("effect") == 0
    fleet.process.terminate()
    assert await fleet.process.ended(deadline_s=8.0) == 75
    assert rig.count("effect") == 0


async def test_workers_end_themselves_when_their_supervisor_is_killed(rig: Rig, start: Start, go: Path) -> None:
    fleet = start(2)
    await until_all_ready(fleet, 2)
    await rig.publish(an_order(1, "wait"))
    await fleet.process.line('"handling"')
    left = [pid for pid in descendants(fleet.process.pid) if is_alive(pid)]
    os.kill(fleet.process.pid, signal.SIGKILL)
    await until(lambda: len(fleet.said("parent gone")) == 2, what="the workers to notice")
    go.touch()
    await until(lambda: not any(is_alive(pid) for pid in left), deadline_s=15.0, what="the workers to end")
    assert rig.count("effect") == 1  # what ran was finished
    assert rig.count("consumer.incarnation") == 0


async def test_a_worker_whose_event_loop_stands_is_killed_and_replaced(rig: Rig, start: Start) -> None:
    """mosquito/aio-pika#650"""
    fleet = start(2, silent_s="5")
    await until_all_ready(fleet, 2)
    await rig.publish(an_order(1, "burn"))
    await fleet.process.line('"worker killed"', deadline_s=30.0)
    assert fleet.said("worker killed")[0]["worker"] == fleet.said("handling")[0]["worker"]
    assert await fleet.is_ready()


async def test_what_no_worker_can_get_over_ends_them_all_with_its_code_and_is_said_once(start: Start) -> None:
    fleet = start(3, app="tests.scenarios.dangerous:nothing")
    assert await fleet.process.ended(deadline_s=60.0) == 78
    assert fleet.process.output.count("want a Consumer") == 1
    assert len(fleet.said("worker ended for good")) == 1
