"""A restored dump, a promoted standby, a point in time: refused, rebased, and every group goes on where it stood."""

from collections.abc import Iterator
from typing import Literal
from uuid import UUID

import psycopg
import pytest

from outbox.errors import StoreUnavailable, WrongDatabase
from outbox.inprocess import InProcessBroker
from outbox.shell.database import connect
from outbox.shell.exits import CONFIGURATION
from outbox_admin import migrate
from outbox_admin.embedded import PostgresNode
from outbox_admin.rebase import rebase
from relay.limits import Limits
from relay.log.sessions import opened
from relay.memory import MemoryPublisher
from tests.integration.relay.copies import copied, same
from tests.integration.relay.faulty_publisher import FaultyPublisher
from tests.integration.relay.running import App, arrived, emit, queued, schedule, start, value
from tests.support.processes import Processes
from tests.support.proxy import Proxy
from tests.support.services import Dump, start_private_postgres
from tests.support.wait import until

GROUPS = ("default", "audit")

_DEFER = """
insert into outbox.deferred (
    group_name, state, category, reason, attempts, due_at,
    id, bucket, tier, tenant, tenant_hash, type, data_version, source, content_type, payload)
select 'default', 'retry', 'unroutable', 'no queue', 1, now(),
    gen_random_uuid(), bucket, tier, tenant, tenant_hash, type, data_version, source, content_type, payload
from outbox.event where tenant = 'quiet' limit 1 returning id"""


def empty(node: PostgresNode, name: str) -> str:
    """The URL of a database that was dropped, if it was there, and made anew."""
    with psycopg.connect(node.dsn(), autocommit=True) as connection:
        connection.execute(f"drop database if exists {name} with (force)".encode())
        connection.execute(f"create database {name} template template0".encode())
    return node.dsn(name)


def end_transactions(url: str, count: int) -> None:
    """Let the cluster give out *count* transaction numbers."""
    loop = f"do $$ begin for i in 1..{count} loop perform pg_current_xact_id(); commit; end loop; end $$"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(loop.encode())


def newest_xid(app: App) -> int:
    return int(str(value(app, "select max(xid::text::bigint) from outbox.event")))


@pytest.fixture
def source(faulty_postgres: PostgresNode) -> str:
    """A database with two groups, in a cluster whose transaction numbers are beyond those of a new one."""
    url = empty(faulty_postgres, "relay_source")
    end_transactions(url, 3000)
    migrate.upgrade(url, chains=("outbox",))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("select outbox.add_group('audit')")
    return url


@pytest.fixture(params=["new cluster", "same cluster"])
def target(request: pytest.FixtureRequest, faulty_postgres: PostgresNode) -> Iterator[str]:
    """Where the dump is restored to."""
    if request.param == "same cluster":
        yield empty(faulty_postgres, "relay_target")
        return
    node = start_private_postgres()
    yield empty(node, "relay_target")
    node.close()


async def run_rebase(url: str) -> None:
    async with await connect(url, application_name="test") as connection:
        assert await rebase(connection, actor="ops") is not None


async def test_a_restored_dump_is_refused_and_after_a_rebase_each_group_gets_what_it_had_not(
    source: str, target: str, dump: Dump, broker: InProcessBroker, processes: Processes
) -> None:
    """ThreeDotsLabs/watermill#576: positions in a restored dump name other transactions, and events were skipped."""
    publisher = FaultyPublisher(broker)
    with psycopg.connect(source) as app:
        published = {"quiet": emit(app, "quiet", count=20), "slow": emit(app, "slow", count=20)}
        app.commit()
        relay = start(source, publisher)
        for group in GROUPS:
            for tenant, events in published.items():
                await arrived(broker, events, tenant, group=group)
        # One tenant of one group falls behind, and has a stream of its own.
        publisher.is_refused = lambda outgoing: (outgoing.lane.group, outgoing.lane.tenant) == ("audit", "slow")
        behind, ahead = emit(app, "slow", count=30), emit(app, "quiet", count=5)
        app.commit()
        await arrived(broker, behind, "slow")
        await arrived(broker, ahead, "quiet", group="audit")

        def is_stored() -> bool:
            stored = value(app, "select array_agg(group_name || ' ' || tenant) from outbox.stream")
            app.commit()
            return stored == ["audit slow"]

        await until(is_stored, what="a stream of the lane that is refused")
        await relay.hand_over()
        assert queued(broker, "slow", group="audit") == published["slow"]
        waiting = {"quiet": emit(app, "quiet", count=7), "slow": emit(app, "slow", count=3)}
        scheduled = schedule(app, due_in_s=0.1)
        deferred = value(app, _DEFER)
        assert isinstance(deferred, UUID)
        app.commit()

    dump.restored(source, target)

    with pytest.raises(
        WrongDatabase, match=r"as in the stored positions, got .*; stop the apps and run 'outbox rebase'$"
    ):
        await start(target, MemoryPublisher(broker)).task
    process = processes.start(
        "outbox-relay", "run", settings={"DATABASE_URL": target, "RABBITMQ_URL": "amqp://guest:guest@127.0.0.1:1/"}
    )
    assert await process.ended() == CONFIGURATION
    assert "run 'outbox rebase'" in process.output.splitlines()[-1]
    # Apps do not know, and go on.
    with psycopg.connect(target) as app:
        written = {"quiet": emit(app, "quiet", count=4), "slow": emit(app, "slow", count=2)}
        app.commit()
    await run_rebase(target)
    with psycopg.connect(target) as app:
        after = {"quiet": emit(app, "quiet", count=4), "slow": emit(app, "slow", count=2)}
        app.commit()

    relay = start(target, MemoryPublisher(broker))
    for group in GROUPS:
        await arrived(broker, [scheduled], "acme", group=group)
        for tenant, events in after.items():
            await arrived(broker, events, tenant, group=group)
    await arrived(broker, [deferred], "quiet")
    await relay.hand_over()
    for group in GROUPS:
        for tenant, earlier in {"quiet": ahead, "slow": behind}.items():
            sent = [one for one in queued(broker, tenant, group=group) if one != deferred]
            assert sent == published[tenant] + earlier + waiting[tenant] + written[tenant] + after[tenant], (
                group,
                tenant,
            )
        assert queued(broker, "acme", group=group) == [scheduled]
    assert queued(broker, "quiet").count(deferred) == 1
    assert deferred not in queued(broker, "quiet", group="audit")


@pytest.mark.parametrize("signal", ["standby", "recovery"])
async def test_a_relay_that_lives_through_a_failover_forgets_what_it_held_and_is_stopped_by_the_timeline(
    source: str, faulty_postgres: PostgresNode, broker: InProcessBroker, signal: Literal["standby", "recovery"]
) -> None:
    """The new primary lacks the last commits, and gives their numbers to new events.

    In memory the relay has passed those numbers. It must neither count them as published nor store that.
    """
    with psycopg.connect(source) as app:
        published = emit(app, count=10)
        app.commit()
        relay = start(source, MemoryPublisher(broker))
        await arrived(broker, published)
        await relay.hand_over()
        waiting = emit(app, count=5)
        app.commit()
    primary = faulty_postgres
    with copied(primary, signal=signal) as copy:
        url = same(source, copy, here=primary)
        async with Proxy(host="127.0.0.1", port=primary.port, speaks="anything") as proxy:
            relay = start(source.replace(f":{primary.port}/", f":{proxy.port}/"), MemoryPublisher(broker))
            await relay.owns(128)
            await arrived(broker, waiting)
            end_transactions(source, 500)
            with psycopg.connect(source) as app:
                lost = emit(app, count=5)
                app.commit()
                lost_xid = newest_xid(app)
            await arrived(broker, lost)
            primary.kill()
            if signal == "standby":
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute("select pg_promote(true, 60)")
            proxy.lead_to(copy.port)
            with pytest.raises(WrongDatabase, match=r"want timeline 00000001 .*, got 00000002; .* 'outbox rebase'"):
                await relay.task
            with psycopg.connect(url) as app:
                new = emit(app, count=5)
                app.commit()
                assert newest_xid(app) < lost_xid
            await run_rebase(url)
            relay = start(url, MemoryPublisher(broker))
            await arrived(broker, new)
            await relay.hand_over()
            # What the old primary sent after the copy was made comes twice: the copy cannot know.
            assert queued(broker) == published + waiting + lost + waiting + new
            assert queued(broker, group="audit") == published + waiting + lost + waiting + new

            # Each server is in order by itself; a relay that has begun on one must not go on on the other.
            primary.start()
            proxy.lead_to(primary.port)
            async with opened(source.replace(f":{primary.port}/", f":{proxy.port}/"), Limits()) as sessions:
                proxy.lead_to(copy.port)
                with pytest.raises(StoreUnavailable, match="want one server, got two"):
                    async with sessions.aside():
                        pass
