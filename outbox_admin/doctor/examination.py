"""All checks, one after another: each has its own deadline, and none stops the others."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from consumer import status as consumer_status
from outbox.errors import BrokerRefused, BrokerUnavailable, ConfigError, OutboxError, SchemaMissing, StoreRefused
from outbox.event import Tier
from outbox.naming import Lane
from outbox.shell.secrets import masked
from outbox.shell.severed import Connection
from outbox.topology import QueueKind
from outbox_admin.doctor import fleet, host_facts, postgres_facts, privileges, schema, server, sessions, versions
from outbox_admin.doctor.finding import Finding, problem, warning
from outbox_admin.doctor.needs import Process, needs_of
from outbox_admin.settings import AdminSettings
from relay import status as relay_status

#: A check that takes longer is given up, and says so.
_WITHIN_S: Final = 15.0
#: Of so many queues the arguments are asked for, one after another.
_QUEUES_MAX: Final = 200

Look: TypeAlias = Callable[[], Awaitable[list[Finding]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """What is looked at.

    *roles*: the database address of each process whose privileges are judged. *group*: one, or all that were added.
    *slots*: of each consumer. *management*: where the broker's HTTP API is, if not at its usual port.
    """

    places: AdminSettings
    roles: Mapping[Process, str]
    group: str | None
    slots: int
    queue_kind: QueueKind
    management: str | None = None

    @property
    def url(self) -> str:
        """The database."""
        return self.places.database_url.get_secret_value()


async def examine(patient: Patient) -> AsyncIterator[Finding]:
    """What each check finds, as it finds it."""
    for subject, look in (("versions", _host), ("database", _asked(patient.url, partial(_reach, patient.url)))):
        found = await _looked(subject, look)
        for finding in found:
            yield finding
    is_reached = not any(finding.subject == "database" for finding in found)
    rest: list[tuple[str, Look]] = []
    if is_reached:
        rest += _of_database(patient)
    if patient.places.broker == "rabbitmq":
        rest += _of_rabbitmq(patient, is_reached=is_reached)
    elif patient.places.broker_database_url is not None:
        url = patient.places.broker_database_url.get_secret_value()
        rest.append(("queues", _asked(url, _queues_in_postgres)))
    for subject, look in rest:
        for finding in await _looked(subject, look):
            yield finding


async def _looked(subject: str, look: Look) -> list[Finding]:
    try:
        async with asyncio.timeout(_WITHIN_S):
            return await look()
    except TimeoutError:
        return [warning(subject, f"gave no answer within {_WITHIN_S:g} s", "run it again when the server is less busy")]
    except SchemaMissing as error:
        return [problem(subject, str(error), "outbox migrate")]
    except (ConfigError, StoreRefused, BrokerRefused) as error:
        return [problem(subject, str(error), "correct the address, or what its user may do")]
    except OutboxError as error:
        return [problem(subject, str(error), "start it, or correct its address")]
    except Exception as error:  # noqa: BLE001 - what one check cannot tell must not hide what the others can
        says = masked(f"could not be looked at: {type(error).__name__}: {error}")
        return [warning(subject, says, "report this line, unless it says what to mend")]


async def _host() -> list[Finding]:
    return versions.of_host(host_facts.host())


async def _reach(url: str, connection: Connection) -> list[Finding]:
    facts = await postgres_facts.server(connection, url)
    return [*versions.of_server(facts), *server.writable(facts), *server.clock(facts)]


def _of_database(patient: Patient) -> list[tuple[str, Look]]:
    has_queues = patient.places.broker == "postgres"
    load = partial(_load, slots=patient.slots, has_queues=has_queues and patient.places.broker_database_url is None)
    return [
        ("schema", _asked(patient.url, _schema)),
        *(("role", _asked(url, partial(_role, url))) for url in dict.fromkeys(patient.roles.values())),
        *(
            (f"privileges of {process}", _asked(url, partial(_privileges, process, has_queues=has_queues)))
            for process, url in patient.roles.items()
        ),
        ("connections", _asked(patient.url, load)),
        ("pooler", _asked(patient.url, _pooler)),
        ("relays", partial(_relays, patient.url)),
        ("groups", _asked(patient.url, partial(_of_groups, patient.group))),
    ]


def _asked(url: str, judge: Callable[[Connection], Awaitable[list[Finding]]]) -> Look:
    async def look() -> list[Finding]:
        async with postgres_facts.asking(url, within_s=_WITHIN_S) as connection:
            return await judge(connection)

    return look


async def _schema(connection: Connection) -> list[Finding]:
    return schema.judge(await postgres_facts.chains(connection))


async def _role(url: str, connection: Connection) -> list[Finding]:
    return server.role(await postgres_facts.server(connection, url))


async def _privileges(process: Process, connection: Connection, *, has_queues: bool) -> list[Finding]:
    needs = needs_of(process, has_queues=has_queues)
    return privileges.judge(await postgres_facts.privileges(connection, process, needs))


async def _load(connection: Connection, *, slots: int, has_queues: bool) -> list[Finding]:
    facts = await postgres_facts.sessions(connection, slots=slots, has_queues=has_queues)
    return [*sessions.connections(facts), *sessions.transactions(facts), *sessions.slots(facts)]


async def _pooler(connection: Connection) -> list[Finding]:
    return sessions.pooler(await postgres_facts.session(connection))


async def _relays(url: str) -> list[Finding]:
    return fleet.relays(await relay_status.read(url))


async def _of_groups(group: str | None, connection: Connection) -> list[Finding]:
    added = [group] if group else await _groups(connection)
    return fleet.groups(added, [await consumer_status.read(connection, name) for name in added])


def _of_rabbitmq(patient: Patient, *, is_reached: bool) -> list[tuple[str, Look]]:
    if patient.places.rabbitmq_url is None:
        missing = problem("rabbitmq", "RABBITMQ_URL is not set", "export RABBITMQ_URL=amqp://user:password@host/vhost")
        return [("rabbitmq", _said(missing))]
    try:
        from consumer.rabbitmq.connection import Address
        from outbox_admin.doctor import broker, management_facts, queues, rabbitmq_facts
    except ImportError as error:
        lacks = warning("rabbitmq", f"cannot be asked: {error}", "pip install 'fairpost[cli]'")
        return [("rabbitmq", _said(lacks))]
    amqp = patient.places.rabbitmq_url.get_secret_value()

    async def over_amqp() -> list[Finding]:
        groups, lanes = await _lanes(patient) if is_reached else ([], [])
        wanted = rabbitmq_facts.known(groups, lanes, patient.queue_kind)
        facts = await rabbitmq_facts.broker(Address(url=amqp, name="outbox doctor"), wanted, most=_QUEUES_MAX)
        found = versions.of_broker(facts)
        if not is_reached:
            return found
        try:
            policies = await management_facts.policies(management_facts.Api.beside(amqp, patient.management))
        except BrokerUnavailable:
            policies = []  # the next check says so
        found += queues.losing(facts, policies)
        return [*found, *queues.arguments(facts), *queues.consumption(facts.queues)]

    async def over_http() -> list[Finding]:
        try:
            facts = await management_facts.management(management_facts.Api.beside(amqp, patient.management))
        except BrokerUnavailable as error:
            says = f"alarms and file handles of RabbitMQ are not known: {error}"
            return [warning("broker nodes", says, "rabbitmq-plugins enable rabbitmq_management, or --management URL")]
        return [*broker.judge(facts), *server.broker_clock(facts)]

    return [("rabbitmq", over_amqp), ("broker nodes", over_http)]


async def _queues_in_postgres(connection: Connection) -> list[Finding]:
    return schema.judge([one for one in await postgres_facts.chains(connection) if one.name == "broker"])


def _said(finding: Finding) -> Look:
    async def look() -> list[Finding]:
        return [finding]

    return look


async def _groups(connection: Connection) -> list[str]:
    rows = await connection.execute("SELECT group_name FROM outbox.consumer_group ORDER BY group_name")
    return [str(name) for (name,) in await rows.fetchall()]


async def _lanes(patient: Patient) -> tuple[Sequence[str], Sequence[Lane]]:
    async with postgres_facts.asking(patient.url, within_s=_WITHIN_S) as connection:
        groups = [patient.group] if patient.group else await _groups(connection)
        rows = await connection.execute(
            "SELECT group_name, tier, tenant FROM outbox.lane WHERE group_name = ANY (%s) ORDER BY 1, 2, 3", (groups,)
        )
        return groups, [
            Lane(group=name, tier=Tier(tier), tenant=tenant) for name, tier, tenant in await rows.fetchall()
        ]
