import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.orm import Session

from outbox.errors import InvalidEvent, TenantRequired
from outbox.tenancy import TENANT_INFO, current_tenant, tenant_of, tenant_scope
from outbox.trail import Trail, current_trail, trail_scope


def test_scopes_nest_and_end_with_an_exception_too() -> None:
    def fail() -> None:
        with tenant_scope("b"):
            assert current_tenant() == "b"
            raise InvalidEvent("as any handler may")

    with tenant_scope("a"):
        with pytest.raises(InvalidEvent, match="as any handler may"):
            fail()
        assert current_tenant() == "a"
    assert current_tenant() is None


async def test_tasks_that_run_together_keep_their_own_tenant() -> None:
    async def work(tenant: str) -> None:
        with tenant_scope(tenant):
            await asyncio.sleep(0)
            assert current_tenant() == tenant
            assert await asyncio.to_thread(current_tenant) == tenant

    await asyncio.gather(*(work(str(number)) for number in range(100)))
    assert current_tenant() is None


def test_another_thread_has_no_tenant_of_ours() -> None:
    with tenant_scope("a"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(current_tenant).result() is None


def test_the_argument_goes_before_the_session_and_the_session_before_the_scope() -> None:
    session = Session()
    with pytest.raises(TenantRequired):
        tenant_of(session, None)
    with tenant_scope("scope"):
        assert tenant_of(session, None) == "scope"
        session.info[TENANT_INFO] = "session"
        assert tenant_of(session, None) == "session"
        assert tenant_of(session, "argument") == "argument"


@pytest.mark.parametrize("tenant", ["", "a\0", "x" * 201])
def test_what_cannot_be_a_tenant_is_refused_wherever_it_comes_from(tenant: str) -> None:
    session = Session(info={TENANT_INFO: tenant})
    with pytest.raises(InvalidEvent):
        tenant_of(session, None)
    with pytest.raises(InvalidEvent):
        tenant_of(session, tenant)
    with pytest.raises(InvalidEvent), tenant_scope(tenant):
        pass


def test_an_empty_argument_is_no_reason_to_take_the_sessions() -> None:
    session = Session(info={TENANT_INFO: "acme"})
    with pytest.raises(TenantRequired):
        tenant_of(session, "")


def test_trails_nest_field_by_field() -> None:
    with trail_scope(Trail(actor="user", correlation_id="whole")), trail_scope(Trail(causation_id="event")):
        assert current_trail() == Trail(actor="user", causation_id="event", correlation_id="whole")
        assert Trail(actor="robot").over(current_trail()).actor == "robot"
    assert current_trail() == Trail()


@pytest.mark.parametrize(
    "fields",
    [
        {"actor": ""},
        {"causation_id": "x" * 256},
        {"correlation_id": "a\0"},
        {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00F067AA0BA902B7-01"},
        {"traceparent": "00-1-2-01"},
        {"tracestate": "a=b\r\nCC: x"},
    ],
)
def test_a_trail_holds_only_what_can_be_stored_and_sent(fields: dict[str, str]) -> None:
    with pytest.raises(InvalidEvent, match=f"^{next(iter(fields))}: want"):
        Trail(**fields)
