"""``outbox-relay`` as a process: settings, signals, probes and exit codes, on real servers."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping

import aio_pika
import pytest

from outbox.event import Tier
from outbox.naming import Lane
from outbox_admin.embedded import free_port
from relay import status
from tests.integration.relay.running import App, emit, value
from tests.support.processes import Processes
from tests.support.wait import until

LANE = Lane(group="default", tier=Tier.STANDARD, tenant="acme")


@pytest.fixture
def settings(url: str, vhost: str) -> Mapping[str, str]:
    return {
        "DATABASE_URL": url,
        "RABBITMQ_URL": vhost,
        "OUTBOX_RELAY_QUEUE_KIND": "classic",
        "OUTBOX_RELAY_LEASE_S": "3",
        "OUTBOX_RELAY_HEALTH_PORT": str(free_port()),
    }


async def depth(vhost: str) -> int:
    """How many messages lie in the lane."""
    connection = await aio_pika.connect(vhost)
    async with connection:
        channel = await connection.channel()
        try:
            queue = await channel.get_queue(LANE.queue)
        except aio_pika.exceptions.ChannelNotFoundEntity:
            return 0
        return queue.declaration_result.message_count or 0


def probe(settings: Mapping[str, str], path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{settings['OUTBOX_RELAY_HEALTH_PORT']}{path}"
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def test_it_publishes_answers_probes_and_hands_over_on_sigterm(
    settings: Mapping[str, str], vhost: str, app: App, processes: Processes
) -> None:
    """janbjorge/pgqueuer#630, #475."""
    relay = processes.start("outbox-relay", "run", settings=settings)
    await relay.line("buckets taken")
    await until(lambda: probe(settings, "/ready")[0] == 200, what="readiness")
    assert probe(settings, "/live")[0] == 200
    emit(app, count=2000)
    app.commit()
    await until(lambda: depth(vhost), deadline_s=20, what="the first messages")
    relay.terminate()
    assert await relay.ended() == 0
    assert value(app, "select count(*) from outbox.bucket where expires_at > clock_timestamp()") == 0
    app.commit()
    second = processes.start("outbox-relay", "run", settings=settings)
    await second.line("buckets taken", deadline_s=10)

    async def all_arrived() -> bool:
        return await depth(vhost) >= 2000

    await until(all_arrived, deadline_s=20, what="all messages")
    assert await depth(vhost) == 2000  # nothing twice after a planned hand-over
    assert "outbox_relay_published_total" in probe(settings, "/metrics")[1]
    told = processes.start("outbox-relay", "status", "--json", settings=settings)
    assert await told.ended() == 0
    assert json.loads(told.output)["relays"][0]["buckets"] == 64


async def test_killed_in_mid_batch_it_loses_nothing(
    settings: Mapping[str, str], vhost: str, app: App, processes: Processes
) -> None:
    """janbjorge/pgqueuer#630: what was picked by a killed worker stayed picked."""
    emit(app, count=5000)
    app.commit()
    first = processes.start("outbox-relay", "run", settings=settings)
    await until(lambda: depth(vhost), deadline_s=20, what="the first messages")
    first.kill()
    second = processes.start("outbox-relay", "run", settings=settings)

    async def is_published() -> bool:
        return not (await status.read(settings["DATABASE_URL"])).groups[0].lag

    await until(is_published, deadline_s=30, what="nothing to be left in the log")
    second.terminate()
    assert await second.ended() == 0
    assert 5000 <= await depth(vhost) <= 5000 + 2000
    assert await _distinct(vhost) == 5000


@pytest.mark.parametrize(
    ("changed", "code", "sentence"),
    [
        ({"OUTBOX_RELAY_WINDO": "5"}, 78, "OUTBOX_RELAY_WINDO: no such setting, did you mean OUTBOX_RELAY_WINDOW?"),
        ({"OUTBOX_RELAY_LEASE_S": "0"}, 78, "OUTBOX_RELAY_LEASE_S: want a number, 3..600"),
        ({"DATABASE_URL": "mysql://localhost/x"}, 78, "want postgresql://"),
        ({"DATABASE_URL": "postgresql://postgres@127.0.0.1:1/x"}, 69, "cannot be reached"),
        ({"RABBITMQ_URL": "amqp://guest:guest@127.0.0.1:1/"}, 69, "RabbitMQ at 127.0.0.1:1"),
    ],
)
@pytest.mark.parametrize("command", ["run", "check"])
async def test_what_is_wrong_is_said_in_one_sentence_with_its_exit_code(
    settings: Mapping[str, str],
    processes: Processes,
    command: str,
    changed: Mapping[str, str],
    code: int,
    sentence: str,
) -> None:
    wrong = {**settings, **changed, "OUTBOX_RELAY_START_S": "0", "OUTBOX_LOG_LEVEL": "error"}
    process = processes.start("outbox-relay", command, settings=wrong)
    assert await process.ended() == code
    last = process.output.strip().splitlines()[-1]
    assert last.startswith("outbox-relay: ")
    assert sentence in last


@pytest.mark.parametrize("command", ["run", "check"])
async def test_a_login_that_the_broker_refuses_is_a_wrong_setting_when_it_starts(
    settings: Mapping[str, str], vhost: str, processes: Processes, command: str
) -> None:
    wrong = {**settings, "RABBITMQ_URL": vhost.replace("guest:guest", "guest:wrong"), "OUTBOX_RELAY_START_S": "600"}
    process = processes.start("outbox-relay", command, settings=wrong)
    assert await process.ended() == 78
    assert "ACCESS_REFUSED" in process.output.strip().splitlines()[-1]


async def test_a_database_that_is_not_migrated_ends_it_with_78(
    database: str, settings: Mapping[str, str], processes: Processes
) -> None:
    process = processes.start("outbox-relay", "run", settings={**settings, "DATABASE_URL": database})
    assert await process.ended() == 78
    assert "outbox migrate" in process.output.strip().splitlines()[-1]


async def _distinct(vhost: str) -> int:
    connection = await aio_pika.connect(vhost)
    async with connection:
        channel = await connection.channel()
        queue = await channel.get_queue(LANE.queue)
        ids = set()
        while (message := await queue.get(no_ack=True, fail=False)) is not None:
            ids.add(message.message_id)
        return len(ids)
