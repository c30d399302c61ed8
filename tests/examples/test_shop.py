"""The shop, started by its README: HTTP requests in, rows and mails out."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import errors

from tests.examples.conftest import QUICK, Place
from tests.examples.stage import Stage, set_up, until_answers
from tests.support.wait import until

_ROOT = Path(__file__).parents[2]
_ORDER: dict[str, Any] = {
    "customer": "ann@example.com",
    "lines": [{"article": "tea", "quantity": 2, "unit_cents": 450}],
}
_AS = "SELECT set_config('app.current_tenant_id', %s, true)"


@pytest.fixture(scope="module")
def shop(place: Place) -> Iterator[Stage]:
    """The shop with all its processes, set up and started by its README."""
    settings = {
        "OWNER_DATABASE_URL": place.owner_url,
        "DATABASE_URL": place.role_url,
        "OUTBOX_RELAY_DATABASE_URL": place.owner_url,
        "RABBITMQ_URL": place.rabbitmq_url,
        "MAIL_URL": "http://127.0.0.1:8001/mails",
    }
    with set_up("shop", settings=settings, more=QUICK) as stage:
        for line in ("outbox-relay", "outbox-consumer", "uvicorn mail_provider"):
            stage.start(line)
        app = stage.start("uvicorn app")
        asyncio.run(until_answers(stage.url(8000) + "/health", of=app))
        yield stage


@pytest.fixture
async def client(shop: Stage) -> AsyncIterator[httpx.AsyncClient]:
    # uvicorn closes a connection behind an answer with 500; no request here is to meet that.
    fresh = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=shop.url(8000), timeout=30, limits=fresh) as client:
        yield client


async def place_order(
    client: httpx.AsyncClient, *, tenant: str, key: str, order: dict[str, Any] = _ORDER
) -> httpx.Response:
    headers = {"X-Tenant-ID": tenant, "Idempotency-Key": key}
    return await client.post("/orders", json=order, headers=headers)


async def listed(client: httpx.AsyncClient, path: str, *, tenant: str) -> list[dict[str, Any]]:
    answer = await client.get(path, headers={"X-Tenant-ID": tenant})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()
    return found


async def test_what_the_readme_says_comes_true(shop: Stage, place: Place) -> None:
    order, look = shop.blocks("Try")
    assert json.loads(shop.shell(order)) == {**_ORDER, "id": 1}
    await place.until_value("SELECT count(*) FROM invoices", 1)
    async with httpx.AsyncClient() as client:

        async def is_mailed() -> bool:
            return bool((await client.get(shop.url(8001) + "/mails")).json())

        await until(is_mailed, deadline_s=30.0, what="a mail")
    printed = shop.shell(look)
    invoices, orders_of_another, mails = [json.loads(part) for part in printed.replace("][", "]\n[").splitlines()]
    assert invoices == [{"order_id": 1, "total_cents": 900}]
    assert orders_of_another == []
    assert mails == [{"to": "ann@example.com", "subject": "Invoice for order 1"}]
    assert json.loads(shop.shell(order))["id"] == 1
    assert place.value("SELECT count(*) FROM orders") == 1


async def test_the_same_idempotency_key_is_one_order_and_one_event(client: httpx.AsyncClient, place: Place) -> None:
    answers = await asyncio.gather(*(place_order(client, tenant="twice", key="k") for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 200, 201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    again = await place_order(client, tenant="twice", key="k")
    assert (again.status_code, again.json()) == (200, answers[0].json())
    assert place.value("SELECT count(*) FROM orders WHERE tenant_id = 'twice'") == 1
    placed = "SELECT count(*) FROM outbox.event WHERE tenant = 'twice' AND type = 'orders.order.placed'"
    assert place.rows(placed) == [(1,)]
    # The same key is another tenant's own.
    assert (await place_order(client, tenant="other", key="k")).status_code == 201


async def test_a_used_key_is_refused_for_another_order(client: httpx.AsyncClient, place: Place) -> None:
    assert (await place_order(client, tenant="changed", key="k")).status_code == 201
    more = {**_ORDER, "lines": _ORDER["lines"] * 2}
    assert (await place_order(client, tenant="changed", key="k", order=more)).status_code == 409
    assert len(await listed(client, "/orders", tenant="changed")) == 1
    # The order is gone, and the outbox still remembers what the key was for: this one is found out at COMMIT.
    place.rows("DELETE FROM order_lines WHERE tenant_id = 'changed'")
    await place.until_value("SELECT count(*) FROM invoices WHERE tenant_id = 'changed'", 1)
    place.rows("DELETE FROM invoices WHERE tenant_id = 'changed'")
    place.rows("DELETE FROM orders WHERE tenant_id = 'changed'")
    refused = await place_order(client, tenant="changed", key="k", order=more)
    assert (refused.status_code, "idempotency key" in refused.text) == (409, True)
    assert await listed(client, "/orders", tenant="changed") == []


async def test_a_commit_that_fails_is_answered_with_an_error_and_leaves_nothing(
    client: httpx.AsyncClient, place: Place
) -> None:
    place.rows(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$;"
        "CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW WHEN (NEW.customer = 'unlucky') EXECUTE FUNCTION refuse()"
    )
    answer = await place_order(client, tenant="unlucky", key="k", order={**_ORDER, "customer": "unlucky"})
    assert answer.status_code == 500, answer.text
    assert await listed(client, "/orders", tenant="unlucky") == []
    assert place.value("SELECT count(*) FROM outbox.event WHERE tenant = 'unlucky'") == 0
    # The key is as free as it was.
    assert (await place_order(client, tenant="unlucky", key="k")).status_code == 201


async def test_the_largest_order_that_may_be_placed_is_billed(client: httpx.AsyncClient, place: Place) -> None:
    line = {"article": "yacht", "quantity": 1_000, "unit_cents": 10_000_000}
    assert (await place_order(client, tenant="rich", key="k", order={**_ORDER, "lines": [line] * 100})).is_success
    await place.until_value("SELECT sum(total_cents) FROM invoices WHERE tenant_id = 'rich'", 10**12)
    assert (await client.get(f"/orders/{2**62}", headers={"X-Tenant-ID": "rich"})).status_code == 404


@pytest.mark.parametrize("wrong", [{"customer": "an\0n"}, {"lines": [_ORDER["lines"][0] | {"article": "te\0a"}]}])
async def test_text_that_the_database_cannot_hold_is_the_clients_mistake(
    client: httpx.AsyncClient, wrong: dict[str, Any]
) -> None:
    answer = await place_order(client, tenant="nul", key="k1", order=_ORDER | wrong)
    assert answer.status_code == 422, answer.text


def test_a_role_that_the_policies_do_not_bind_is_refused(shop: Stage, migrated_database: str) -> None:
    with pytest.raises(AssertionError, match="want a role that policies bind, got"):
        shop.shell("alembic upgrade head", OWNER_DATABASE_URL=migrated_database, DATABASE_URL=migrated_database)


@pytest.mark.parametrize("tenant", ["", "ACME", "a b", "a" * 64, "a';--"])
async def test_a_tenant_that_can_be_none_is_refused(client: httpx.AsyncClient, tenant: str) -> None:
    assert (await client.get("/orders", headers={"X-Tenant-ID": tenant})).status_code == 422


async def test_a_tenant_sees_no_rows_of_another(client: httpx.AsyncClient, place: Place) -> None:
    mine = (await place_order(client, tenant="mine", key="k")).json()["id"]
    theirs = (await place_order(client, tenant="theirs", key="k")).json()["id"]
    assert [one["id"] for one in await listed(client, "/orders", tenant="mine")] == [mine]
    assert (await client.get(f"/orders/{theirs}", headers={"X-Tenant-ID": "mine"})).status_code == 404
    assert (await client.get(f"/orders/{theirs}", headers={"X-Tenant-ID": "theirs"})).status_code == 200

    is_above = "SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = %s"
    owned = "SELECT count(*) FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner WHERE r.rolname = %s"
    assert (place.value(is_above, place.role), place.value(owned, place.role)) == (False, 0)
    # The same role, by whatever SQL.
    with psycopg.connect(place.role_url) as connection:
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (0,)
        connection.execute(_AS, ("mine",))
        assert connection.execute("SELECT DISTINCT tenant_id FROM orders").fetchall() == [("mine",)]
        assert connection.execute("UPDATE orders SET customer = 'x' WHERE id = %s", (theirs,)).rowcount == 0
        assert connection.execute("DELETE FROM order_lines WHERE order_id = %s", (theirs,)).rowcount == 0
        with pytest.raises(errors.InsufficientPrivilege), connection.transaction():
            connection.execute("INSERT INTO orders (tenant_id, idempotency_key, customer) VALUES ('theirs', 'x', 'x')")
        # Foreign keys are checked without the policies, and so name the tenant.
        with pytest.raises(errors.ForeignKeyViolation), connection.transaction():
            connection.execute("INSERT INTO invoices (order_id, total_cents) VALUES (%s, 1)", (theirs,))


async def test_a_handler_reaches_no_row_of_another_tenant(shop: Stage, place: Place, client: httpx.AsyncClient) -> None:
    assert (await place_order(client, tenant="globex", key="theirs")).status_code == 201
    shop.shell("DATABASE_URL=$OWNER_DATABASE_URL outbox group add intruder")
    line = "outbox-consumer run tests.examples.intruder:consumer"
    intruder = shop.command(line, cwd=_ROOT, PYTHONPATH=str(shop.folder))
    assert (await place_order(client, tenant="acme", key="intruded")).status_code == 201
    refused = "SELECT message FROM consumer.dead WHERE group_name = 'intruder' AND type = 'orders.order.placed'"
    await until(lambda: place.rows(refused), deadline_s=30.0, what="the intruder's dead letter")
    intruder.kill()
    assert "row-level security" in place.value(refused)
    assert place.rows("SELECT DISTINCT result FROM consumer.result WHERE group_name = 'intruder'") == [
        ({"seen": 0, "changed": 0},)
    ]
    assert place.value("SELECT count(*) FROM orders WHERE customer = 'mallory'") == 0


class HoldingProvider:
    """A mail provider that writes the mail down and then lets its caller wait for the answer, until told otherwise."""

    def __init__(self) -> None:
        self.mails: dict[str, int] = {}
        self.puts: list[tuple[str, int]] = []
        self.asked = 0
        self._may_answer = threading.Event()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                token = int(self.headers["Fencing-Token"])
                provider.puts.append((self.path, token))
                provider.mails.setdefault(self.path, token)
                provider._may_answer.wait(60)
                self._answer(200)

            def do_GET(self) -> None:
                provider.asked += 1
                self._answer(200 if self.path in provider.mails else 404)

            def _answer(self, status: int) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_arguments: object) -> None:
                """Whoever asked was killed meanwhile."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/mails"

    def answer(self) -> None:
        self._may_answer.set()

    def close(self) -> None:
        self.answer()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def provider() -> Iterator[HoldingProvider]:
    provider = HoldingProvider()
    yield provider
    provider.close()


async def test_a_consumer_killed_in_mid_work_has_each_effect_once(
    shop: Stage, place: Place, client: httpx.AsyncClient, provider: HoldingProvider
) -> None:
    # What other tests have left to do would meet the lock below, and this provider, too.
    await place.until_value(
        "SELECT (SELECT count(*) FROM outbox.event)"
        " - (SELECT count(*) FROM consumer.ledger WHERE group_name = 'billing' AND state = 'done')",
        0,
    )
    shop.running["outbox-consumer"].terminate()
    await shop.running["outbox-consumer"].ended()
    with psycopg.connect(place.owner_url) as blocker:
        blocker.execute("LOCK TABLE invoices IN ACCESS EXCLUSIVE MODE")
        shop.start("outbox-consumer", MAIL_URL=provider.url)
        assert (await place_order(client, tenant="killed", key="k")).status_code == 201
        waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'invoices'::regclass AND NOT granted"
        await place.until_value(waiting, 1)
        shop.running["outbox-consumer"].kill()  # while it writes the invoice
        blocker.rollback()
    await place.until_value(waiting, 0)
    assert place.value("SELECT count(*) FROM invoices WHERE tenant_id = 'killed'") == 0

    shop.start("outbox-consumer", MAIL_URL=provider.url)
    await until(lambda: provider.puts, deadline_s=30.0, what="a mail to be sent")
    shop.running["outbox-consumer"].kill()  # the mail is out, and nobody has written that down
    provider.answer()

    shop.start("outbox-consumer", MAIL_URL=provider.url)
    is_done = "SELECT count(*) FROM consumer.ledger WHERE tenant = 'killed' AND handler = 'send' AND state = 'done'"
    await place.until_value(is_done, 1)
    assert place.value("SELECT count(*) FROM invoices WHERE tenant_id = 'killed'") == 1
    assert (len(provider.mails), len(provider.puts)) == (1, 1)
    assert provider.asked
    assert provider.puts[0][1] > 0
    assert place.value("SELECT count(*) FROM consumer.dead WHERE tenant = 'killed' AND group_name = 'billing'") == 0
