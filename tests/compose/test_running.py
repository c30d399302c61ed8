"""What compose.yaml describes, running: images from the Dockerfile's lines, real servers, an order placed."""

import asyncio
import json
import os
import re
import urllib.error
from collections.abc import Callable
from pathlib import Path
from signal import SIGTERM

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from outbox.event import Tier
from outbox.naming import Lane
from outbox.shell.exits import DONE
from reference.metrics import rows_of_consumer, rows_of_relay
from tests.compose.building import UID, Builder, run
from tests.compose.deployment import COMPOSE, ROOT
from tests.compose.promql import Served, expressions
from tests.compose.servers import Servers, postgresql_settings
from tests.compose.stack import LASTING, Stack
from tests.compose.test_compose_file import jobs
from tests.support.installs import SOURCES
from tests.support.metric_names import complaints
from tests.support.wait import until

# Packages are installed for real, twice; a busy machine takes its time.
pytestmark = pytest.mark.timeout(600)

ORDER = b'{"customer": "ann@example.com", "lines": [{"article": "tea", "quantity": 2, "unit_cents": 450}]}'


@pytest.fixture(scope="module")
def ordered(stack: Stack) -> Stack:
    """A stack with an order placed by acme."""
    headers = {"X-Tenant-ID": "acme", "Idempotency-Key": "first"}
    assert json.loads(stack.post("shop", "/orders", ORDER, headers=headers))["id"] > 0
    return stack


async def _eventually(holds: Callable[[], object], what: str) -> None:
    await until(holds, deadline_s=30.0, every_s=0.1, what=what)


async def test_an_order_has_its_invoice_and_its_mail_and_nobody_elses(ordered: Stack) -> None:
    await _eventually(lambda: json.loads(ordered.get("shop", "/invoices", tenant="acme")), "an invoice")
    await _eventually(lambda: json.loads(ordered.get("mail", "/mails")), "a mail")
    assert json.loads(ordered.get("shop", "/invoices", tenant="acme"))[0]["total_cents"] == 900
    assert json.loads(ordered.get("shop", "/invoices", tenant="globex")) == []
    assert len(json.loads(ordered.get("mail", "/mails"))) == 1


def test_every_process_runs_as_the_images_user(stack: Stack) -> None:
    for name in LASTING:
        assert stack.account_of(name) == (UID if os.geteuid() == 0 else os.geteuid())


def test_every_health_check_says_that_its_process_is_well(stack: Stack) -> None:
    for name in LASTING:
        assert stack.is_healthy(name), name


def test_an_operator_sees_groups_and_both_statuses(ordered: Stack) -> None:
    groups = json.loads(ordered.run_in("outbox", ["outbox", "group", "list", "--json"]))
    relays = json.loads(ordered.run_in("relay", ["outbox-relay", "status", "--json"]))["relays"]
    fleet = json.loads(ordered.run_in("consumer", ["outbox-consumer", "status", "--json"]))
    assert json.dumps(groups).count('"name"') == 1
    assert "billing" in json.dumps(groups)
    assert [relay["buckets"] for relay in relays] == [64]
    assert fleet["problems"] == []


def test_the_doctor_has_nothing_against_it(ordered: Stack) -> None:
    code, printed = ordered.ask_in("outbox", ["outbox", "doctor", "--group", "billing", "--json"])
    findings = json.loads(printed)["findings"]
    assert [one for one in findings if one["level"] == "problem"] == []
    assert [one["says"].split()[0] for one in findings if one["subject"] == "role"] == ["shop_relay", "shop"]
    assert code == DONE


def test_the_relay_has_the_grants_of_the_page_and_no_others() -> None:
    page = (ROOT / "docs/how-to/roles.md").read_text()
    _, _, grants = (COMPOSE / "postgres" / "relay.sql").read_text().partition("\n")
    assert f"-- the relay\n{grants}\n-- the consumer" in page


async def test_the_policy_of_the_file_is_in_force(ordered: Stack, servers: Servers) -> None:
    await _eventually(lambda: json.loads(ordered.get("mail", "/mails")), "a mail")
    lane = Lane(group="billing", tier=Tier.STANDARD, tenant="acme").queue
    policies = dict(line.split("\t") for line in servers.rabbit.ctl("list_queues", "name", "policy").splitlines())
    assert policies[lane] == "lanes"
    assert {policy for queue, policy in policies.items() if not queue.startswith("outbox.lane.")} <= {"", "policy"}
    assert '{"max-length-bytes":1073741824}' in servers.rabbit.ctl("list_policies")


def test_postgresql_runs_with_every_setting_of_the_file(servers: Servers) -> None:
    settings = {name: value for name, value in postgresql_settings().items() if name != "listen_addresses"}
    assert len(settings) > 10
    with psycopg.connect(servers.dsn("postgres")) as connection:
        for name, wanted in settings.items():
            row = connection.execute(
                "SELECT setting, unit, source FROM pg_settings WHERE lower(name) = lower(%s)", (name,)
            ).fetchone()
            assert row is not None, name
            shown = connection.execute(f"SHOW {name}".encode()).fetchone()
            assert shown is not None
            assert (shown[0], row[2]) == (wanted, "command line"), name


def test_the_image_has_the_processes_and_no_tools_of_the_build(builder: Builder) -> None:
    relay = builder.build("relay")
    programs = {path.name for path in Path(relay.local("/opt/venv/bin")).iterdir()}
    assert {"outbox", "outbox-relay", "outbox-consumer"} <= programs
    assert not {name for name in programs if name.startswith(("pip", "hatch", "gcc"))}
    assert not Path(relay.local("/src")).exists()
    assert not Path(relay.local("/wheels")).exists()
    where = run(relay, "python -c 'import outbox, relay; print(outbox.__file__, relay.__file__)'").split()
    assert all(path.startswith(str(relay.root)) for path in where), where


def test_versions_are_those_of_the_constraints(builder: Builder) -> None:
    question = "from importlib.metadata import distributions as d; print(*(f'{x.name}=={x.version}' for x in d()))"
    installed = run(builder.build("example"), f'python -c "{question}"').split()
    text = (Path(__file__).parents[2] / "constraints.txt").read_text()
    allowed = {_normal(line) for line in text.splitlines() if "==" in line}
    strange = {_normal(one) for one in installed} - allowed
    assert {one.partition("==")[0] for one in strange} == set(SOURCES)


def _normal(pin: str) -> str:
    name, _, version = pin.partition("==")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


def test_secrets_of_a_deployment_do_not_reach_its_logs(stack: Stack) -> None:
    for name in LASTING:
        assert "only-for-development" not in stack.said(name)


@pytest.fixture(scope="module")
def scraped(ordered: Stack) -> dict[str, str]:
    """What relay and consumer say to Prometheus after an order was handled."""
    asyncio.run(_eventually(lambda: json.loads(ordered.get("mail", "/mails")), "a mail"))
    return {name: ordered.get(name, "/metrics") for name in ("relay", "consumer")}


@pytest.fixture(scope="module")
def served(scraped: dict[str, str]) -> Served:
    """The same, by name and label."""
    families = [family for text in scraped.values() for family in text_string_to_metric_families(text)]
    return Served(families, jobs=[job for job, _, _ in jobs()])


def test_names_help_and_labels_are_as_the_field_has_them(scraped: dict[str, str]) -> None:
    for name, text in scraped.items():
        found = list(text_string_to_metric_families(text))
        assert complaints(found) == [], name
        assert {f"outbox_{name}_build_info"} <= {sample.name for family in found for sample in family.samples}


def test_what_is_served_is_what_the_reference_lists(scraped: dict[str, str]) -> None:
    for name, rows in (("relay", rows_of_relay()), ("consumer", rows_of_consumer())):
        families = [one for one in text_string_to_metric_families(scraped[name]) if one.name.startswith("outbox_")]
        names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
        assert names == {row.name for row in rows}
        kinds = {family.name.removesuffix("_total"): (family.type, family.documentation) for family in families}
        assert {row.name.removesuffix("_total"): (row.kind, row.what) for row in rows} == kinds


def test_no_value_is_a_tenants(scraped: dict[str, str]) -> None:
    for text in scraped.values():
        assert "acme" not in text


@pytest.mark.parametrize(("where", "expression", "shown"), [*expressions()], ids=[one[0] for one in expressions()])
def test_what_is_asked_for_is_served(served: Served, where: str, expression: str, shown: str) -> None:
    assert served.problems(expression, shown) == []


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("outbox_relay_publishd_total", "outbox_relay_publishd_total: not served"),
        ("outbox_relay_in_flight{tier='bulk'}", "outbox_relay_in_flight: has no label tier"),
        ("outbox_relay_slots_kept{reason='lost'}", 'outbox_relay_slots_kept: reason="lost" is not served'),
        ("sum by (tier) (outbox_relay_in_flight)", "tier: a label of nothing asked for"),
        ("absent(up{job='outbox'})", 'up: job="outbox" is not served'),
    ],
)
def test_what_is_not_served_is_found(served: Served, expression: str, problem: str) -> None:
    assert served.problems(expression, "") == [problem]


# The last of this file: it ends what the others use.
async def test_each_ends_well_when_it_is_asked_to(stack: Stack) -> None:
    for name in ("shop", "consumer", "relay", "mail"):
        grace_s = float(stack.services[name].content["stop_grace_period"].removesuffix("s"))
        # uvicorn ends by the signal that it was asked with, once it has ended well.
        ends = {0, -SIGTERM} if stack.services[name].command[0] == "uvicorn" else {0}
        assert stack.stop(name, within_s=grace_s) in ends, name
    with pytest.raises(urllib.error.URLError):
        stack.get("relay", "/ready")
