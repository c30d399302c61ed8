"""How an address becomes libpq's, without a server."""

import asyncio

import pytest
from psycopg.conninfo import conninfo_to_dict

from outbox.errors import ConfigError, StoreUnavailable
from outbox.shell.database import conninfo, deadline


@pytest.mark.parametrize(
    "url", ["postgresql://u:p@h:1/d", "postgresql+psycopg://u:p@h:1/d", "user=u password=p host=h port=1 dbname=d"]
)
def test_every_way_to_write_an_address_gives_the_same_connection(url: str) -> None:
    parts = conninfo_to_dict(conninfo(url, application_name="outbox-relay", connect_timeout_s=2.5))
    assert {name: parts[name] for name in ("user", "password", "host", "port", "dbname")} == {
        "user": "u",
        "password": "p",
        "host": "h",
        "port": "1",
        "dbname": "d",
    }
    assert (parts["application_name"], parts["connect_timeout"], parts["keepalives"]) == ("outbox-relay", "3", "1")
    assert parts["tcp_user_timeout"] == "25000"


def test_what_the_address_sets_itself_wins() -> None:
    parts = conninfo_to_dict(
        conninfo("postgresql://h/d?connect_timeout=60&application_name=mine", application_name="x")
    )
    assert (parts["connect_timeout"], parts["application_name"]) == ("60", "mine")


def test_what_is_no_address_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigError) as caught:
        conninfo("postgresql://u:s3cret@h/d?nonsense=1", application_name="x")
    assert "s3cret" not in str(caught.value)


async def test_a_deadline_that_passes_says_what_was_waited_for() -> None:
    with pytest.raises(StoreUnavailable, match="reading positions took longer than"):
        async with deadline(0.01, what="reading positions"):
            await asyncio.Event().wait()


async def test_a_limit_of_somebody_else_is_not_taken_for_ours() -> None:
    with pytest.raises(TimeoutError):
        async with deadline(10, what="reading positions"), asyncio.timeout(0.01):
            await asyncio.Event().wait()
