"""What the doctor makes of facts: each bound from both sides."""

import json
from pathlib import Path

import pytest

from outbox.errors import ConfigError
from outbox.event import Tier
from outbox.naming import Lane
from outbox.topology import QueueKind
from outbox_admin.doctor import broker, host_facts, queues, rabbitmq_facts, server, sessions, versions
from outbox_admin.doctor.facts import Broker, Host, Management, Node, Package, Policy, Queue, Server, Session, Sessions
from outbox_admin.doctor.finding import Finding, Level
from outbox_admin.doctor.management_facts import Api

_SERVER = {"address": "here", "version": "15.1", "role": "ann", "policies": 0, "is_superuser": False}


def a_server(**changes: object) -> Server:
    known = {
        **_SERVER,
        "version_num": 150_001,
        "bypasses_rls": False,
        "is_standby": False,
        "is_read_only": False,
        "clock_s": 0.0,
        "error_s": 0.001,
        **changes,
    }
    return Server(**known)  # type: ignore[arg-type]


def some_sessions(**changes: object) -> Sessions:
    known = {
        "max_connections": 100,
        "reserved": 3,
        "used": 5,
        "wanted": 20,
        "max_prepared": 0,
        "prepared": 0,
        "prepared_oldest_s": 0.0,
        "open_oldest_s": 0.0,
        "open_oldest_by": "",
        "slots": {},
        **changes,
    }
    return Sessions(**known)  # type: ignore[arg-type]


def levels(found: list[Finding]) -> list[Level]:
    return [finding.level for finding in found]


@pytest.mark.parametrize(
    ("number", "level"), [(120_022, "problem"), (130_000, "ok"), (180_006, "ok"), (190_000, "warning")]
)
def test_postgresql_is_known_from_13_to_18(number: int, level: str) -> None:
    assert levels(versions.of_server(a_server(version_num=number))) == [level]


@pytest.mark.parametrize(
    ("version", "level"),
    [("3.9.29", "problem"), ("3.10.8", "ok"), ("4.3.0", "ok"), ("4.4.0", "warning"), ("odd", "warning")],
)
def test_rabbitmq_is_known_from_3_10_to_4_3(version: str, level: str) -> None:
    assert levels(versions.of_broker(Broker(address="here", version=version))) == [level]


def test_a_package_outside_its_range_is_a_problem() -> None:
    pinned = Package(name="aiormq", version="6.9", wanted="~=7.2.4", fits=False)
    found = versions.of_host(Host(python=(3, 12), packages=(pinned,)))
    assert [finding.remedy for finding in found if finding.level is Level.PROBLEM] == ["pip install 'aiormq~=7.2.4'"]
    assert levels(versions.of_host(Host(python=(3, 10), packages=()))) == [Level.PROBLEM, Level.OK]


def test_the_packages_of_this_environment_fit() -> None:
    assert all(package.fits for package in host_facts.host().packages)


@pytest.mark.parametrize(
    ("ahead_s", "level"), [(0.5, "ok"), (-0.5, "ok"), (1.5, "warning"), (-1.5, "warning"), (61, "problem")]
)
def test_a_clock_may_be_off_by_a_second(ahead_s: float, level: str) -> None:
    assert levels(server.clock(a_server(clock_s=ahead_s))) == [level]


def test_what_http_rounds_is_not_the_clocks_fault() -> None:
    assert levels(server.broker_clock(Management(url="", nodes=(), clock_s=1.9))) == [Level.OK]
    assert levels(server.broker_clock(Management(url="", nodes=(), clock_s=2.1))) == [Level.WARNING]


@pytest.mark.parametrize(
    ("changes", "level"), [({}, "ok"), ({"used": 78}, "warning"), ({"wanted": 97}, "ok"), ({"wanted": 98}, "problem")]
)
def test_connections_must_suffice_for_what_our_processes_take(changes: dict[str, int], level: str) -> None:
    assert levels(sessions.connections(some_sessions(**changes))) == [level]


def test_a_slot_that_holds_back_a_million_transactions_is_named() -> None:
    assert levels(sessions.slots(some_sessions(slots={"near": 10}))) == [Level.OK]
    (finding,) = sessions.slots(some_sessions(slots={"gone": 2_000_000}))
    assert "pg_drop_replication_slot('gone')" in finding.remedy


@pytest.mark.parametrize(("keeps_settings", "keeps_backend"), [(False, True), (True, False), (False, False)])
def test_a_pooler_that_shares_sessions_is_a_problem(keeps_settings: bool, keeps_backend: bool) -> None:
    shared = Session(keeps_settings=keeps_settings, keeps_backend=keeps_backend)
    assert levels(sessions.pooler(shared)) == [Level.PROBLEM]
    assert levels(sessions.pooler(Session(keeps_settings=True, keeps_backend=True))) == [Level.OK]


def test_the_policy_of_the_highest_priority_counts_and_operators_have_their_own() -> None:
    queue = Queue(name="outbox.lane.a", group="a", is_lane=True, messages=0)
    there = Broker(address="", version="4.0.0", queues=(queue,))

    def policy(pattern: str, priority: int, key: str, *, is_operators: bool = False) -> Policy:
        return Policy(pattern=pattern, priority=priority, definition={key: 1}, is_operators=is_operators)

    lossy, harmless = policy("^outbox", 0, "message-ttl"), policy("^outbox", 5, "ha-mode")
    assert len(queues.losing(there, [lossy])) == 1
    assert not queues.losing(there, [lossy, harmless])
    assert not queues.losing(there, [policy("^other", 9, "expires"), policy("(?<odd", 9, "expires")])
    assert len(queues.losing(there, [harmless, policy(".*", 0, "max-length", is_operators=True)])) == 1


def test_a_limit_on_its_length_loses_nothing_of_a_lane_that_refuses_what_is_published() -> None:
    lane = Lane(group="a", tier=Tier.STANDARD, tenant="t")
    compose = json.loads((Path(__file__).parents[3] / "compose/rabbitmq/policies.json").read_text())["policies"]
    policies = [
        Policy(pattern=one["pattern"], priority=one["priority"], definition=one["definition"], is_operators=False)
        for one in compose
    ]
    kinds: list[tuple[QueueKind, int]] = [("quorum", 0), ("classic", 1)]
    for kind, losing in kinds:
        (known,) = (one for one in rabbitmq_facts.known(["a"], [lane], kind) if one.is_lane)
        queue = Queue(name=known.name, group="a", is_lane=True, messages=0, refuses_when_full=known.refuses_when_full)
        assert len(queues.losing(Broker(address="", version="4.0.0", queues=(queue,)), policies)) == losing


@pytest.mark.parametrize(
    ("used", "most", "level"),
    [(100, 65_536, "ok"), (60_000, 65_536, "problem"), (10, 1_024, "warning"), (None, None, "ok")],
)
def test_file_handles_must_suffice_for_quorum_queues(used: int | None, most: int | None, level: str) -> None:
    node = Node(name="rabbit@a", handles=used, handles_max=most, has_memory_alarm=False, has_disk_alarm=False)
    assert levels(broker.judge(Management(url="", nodes=(node,), clock_s=0.0))) == [level]


def test_a_login_in_the_address_of_the_http_api_counts_and_is_never_shown() -> None:
    api = Api.beside("amqp://app:one@rabbit/shop", "https://watch:two@rabbit:15671")
    assert (str(api.url), api.user, api.password) == ("https://rabbit:15671", "watch", "two")
    api = Api.beside("amqp://app:one@rabbit/shop", None)
    assert (str(api.url), api.user, api.password) == ("http://rabbit:15672", "app", "one")
    with pytest.raises(ConfigError) as refused:
        Api.beside("amqp://app:one@rabbit/shop", "amqp://watch:two@rabbit")
    assert "two" not in str(refused.value)


def test_of_many_queues_with_other_arguments_some_are_named_and_the_rest_counted() -> None:
    drifted = [Queue(name=f"q{n}", group="a", is_lane=True, messages=0, drift="odd") for n in range(7)]
    *named, rest = queues.arguments(Broker(address="", version="4.0.0", queues=tuple(drifted)))
    assert (len(named), rest.says) == (5, "2 more queues with other arguments")
    assert rest.remedy.startswith("rabbitmqctl ")


@pytest.mark.parametrize("changes", [{"is_superuser": True}, {"bypasses_rls": True}])
def test_a_role_above_row_level_security_is_a_problem_where_policies_stand(changes: dict[str, bool]) -> None:
    assert levels(server.role(a_server(**changes))) == [Level.WARNING]
    assert levels(server.role(a_server(**changes, policies=1))) == [Level.PROBLEM]
    assert levels(server.role(a_server(policies=1))) == [Level.OK]
