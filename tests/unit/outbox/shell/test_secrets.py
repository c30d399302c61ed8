"""A password never shows, however the address is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.shell.secrets import masked, shown_url


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://u:pw@h:5432/d", "postgresql://u:***@h:5432/d"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("amqps://u:p@ss/w:rd@h/v", "amqps://u:***@h/v"),
        ("postgresql://h/d?user=u&password=pw&sslmode=require", "postgresql://h/d?user=u&password=***&sslmode=require"),
        ("host=h password=pw dbname=d", "host=h password=*** dbname=d"),
        (r"host=h password = 'p w\'x' dbname=d", "host=h password = *** dbname=d"),
        ("https://hooks.chat.example/T01/B02/s3cret?x=1", "https://hooks.chat.example/***"),
        ("http://localhost:9000", "http://localhost:9000"),
        ("not an address", "not an address"),
    ],
)
def test_an_address_is_shown_without_its_password(address: str, shown: str) -> None:
    assert shown_url(address) == shown


def test_an_address_inside_a_sentence_is_masked_too() -> None:
    assert masked("cannot reach amqp://u:pw@h/v: refused") == "cannot reach amqp://u:***@h/v: refused"


@given(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=3))
def test_no_password_of_any_kind_shows(password: str) -> None:
    secret = f"~{password}~"
    assert secret not in shown_url(f"postgresql://user:{secret}@host/d")
