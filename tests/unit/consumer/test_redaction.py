import json
import sys
from collections.abc import Callable
from types import SimpleNamespace

import psycopg
import pytest
import sqlalchemy.exc
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from consumer.decide.redaction import payload_values, printable, redact, summarise

TOKEN = "CANARY-7f3a9b21c0"
PLAIN = "swordfish"
QUOTED = "it's a \"canary\" in 'quotes'"
SECRETS = [TOKEN, PLAIN, QUOTED, "canary@example.com", "4111 1111 1111 1111", "+49 170 1234567", "two\nlines of canary"]


def told(error: BaseException, *values: str) -> str:
    """Return everything that is kept of *error*."""
    summary = summarise(error, values=values)
    return f"{summary} {summary!r}"


def _validation_error(secret: str) -> Exception:
    class Order(BaseModel):
        amount: int

    with pytest.raises(ValueError, match="validation error") as caught:
        Order.model_validate({"amount": secret})
    return caught.value


def _raised(secret: str, kind: type[Exception], act: Callable[[str], object]) -> Exception:
    with pytest.raises(kind) as caught:
        act(secret)
    return caught.value


def _unique_violation(secret: str) -> psycopg.Error:
    return psycopg.errors.UniqueViolation(
        f'duplicate key value violates unique constraint "users_email"\nDETAIL:  Key (email)=({secret}) already exists.'
    )


def _bad_input(secret: str) -> psycopg.Error:
    return psycopg.errors.InvalidTextRepresentation(
        f"invalid input syntax for type integer: \"{secret}\"\nLINE 1: select '{secret}'::int"
    )


def _through_sqlalchemy(secret: str) -> BaseException:
    return sqlalchemy.exc.DBAPIError.instance(
        "INSERT INTO users (email) VALUES (%(email)s)", {"email": secret}, _unique_violation(secret), psycopg.Error
    )


# What repeats a value between quotes or brackets, after an equals sign or below the first line.
RECOGNISED: dict[str, Callable[[str], BaseException]] = {
    "postgresql detail": _unique_violation,
    "postgresql message and position": _bad_input,
    "sqlalchemy parameters": _through_sqlalchemy,
    "pydantic": _validation_error,
    "int()": lambda secret: _raised(secret, ValueError, int),
    "float()": lambda secret: _raised(secret, ValueError, float),
    "missing key": lambda secret: _raised(secret, KeyError, dict[str, str]().__getitem__),
    "missing attribute": lambda secret: _raised(secret, AttributeError, lambda name: getattr(object(), name)),
    "missing file": lambda secret: _raised(secret, OSError, lambda name: open(f"/no-such/{name}")),  # noqa: SIM115  # it never opens
    "dict in a message": lambda secret: ValueError(f"bad order {{'email': '{secret}'}}"),
    "parentheses": lambda secret: ValueError(f"no such customer ({secret}) in this account"),
    "assigned": lambda secret: ValueError(f"login refused, password={secret}"),
    "unbalanced quote": lambda secret: ValueError(f"unexpected text near '{secret}"),
    "apostrophe before": lambda secret: ValueError(f"can't find user's account '{secret}'"),
    "bytes": lambda secret: ValueError(f"cannot decode {secret.encode()!r}"),
    "below the first line": lambda secret: ValueError(f"request failed\nbody: {secret}"),
}


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("shape", RECOGNISED)
def test_no_value_is_told_where_a_message_marks_it_as_one(shape: str, secret: str) -> None:
    text = told(RECOGNISED[shape](secret))

    for part in (secret, *secret.split()):
        assert part not in text or part in ("a", "in", "of", "two")


@pytest.mark.parametrize("secret", [TOKEN, "canary@example.com", "4111 1111 1111 1111", "+49 170 1234567", "hunter2"])
@pytest.mark.parametrize(
    "message", ["{}", "no such customer {}", "{} was refused", "customer: {}, order 7", "see https://shop/{}?x", "a/{}"]
)
def test_no_token_number_or_address_is_told_even_unmarked(message: str, secret: str) -> None:
    text = told(ValueError(message.format(secret)))

    assert secret not in text
    assert not [part for part in secret.split() if len(part) > 3 and part in text]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("message", ["{}", "no such customer {}", "{} was refused", "x{}y", "customer: {}, order 7"])
def test_nothing_that_stands_in_the_payload_is_told_however_it_is_written(message: str, secret: str) -> None:
    values = payload_values(json.loads(json.dumps({"customer": [{"name": secret}]})))

    text = told(ValueError(message.format(secret)), *values)

    for line in secret.splitlines():
        assert line not in text


def test_a_short_value_of_the_payload_is_removed_as_a_word_and_leaves_others_readable() -> None:
    values = payload_values({"code": 123, "name": "Bob"})

    assert redact("Bob sent 123, Bobby sent none", values=values) == "… sent … Bobby sent none"


def test_the_payload_is_searched_to_any_depth() -> None:
    deep: object = "bottom"
    for _ in range(10_000):
        deep = [deep]

    assert payload_values({"a": True, "list": [1234, 1.5, None], "deep": deep}) == {
        "list",
        "deep",
        "1234",
        "1.5",
        "bottom",
    }


def test_names_and_plain_words_are_kept() -> None:
    diagnosis = SimpleNamespace(
        message_primary='duplicate key value violates unique constraint "users_email"', constraint_name="users_email"
    )

    class Violation(Exception):
        sqlstate = "23505"
        diag = diagnosis

    try:
        try:
            raise Violation("DETAIL: Key (email)=(canary@example.com) already exists.")
        except Violation as error:
            raise RuntimeError("billing failed") from error
    except RuntimeError as error:
        summary = summarise(error)

    assert str(summary) == "RuntimeError [23505] (users_email): duplicate key value violates unique constraint …"
    assert redact("connection refused by port 5432") == "connection refused by port 5432"
    assert redact("it doesn't work") == "it doesn't work"


def test_a_summary_is_one_printable_line_of_bounded_length() -> None:
    """Escapes, bidi marks and lone surrogates could forge log lines or break whoever stores them."""
    text = str(summarise(ValueError("go \x1b[31mred\x07 \u202eback \ud800 end " + "word " * 500)))

    assert text.isprintable()
    assert text.encode()
    assert len(summarise(ValueError("word " * 500)).message) == 512
    assert redact("x" * 100_000) == "…"
    assert printable("a\nb\u2028") == "a\\nb\\u2028"


def test_an_error_that_cannot_be_printed_is_told_all_the_same() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    assert summarise(Broken()).message == "the error cannot be printed"


@given(st.text())
def test_any_text_gives_a_printable_line(text: str) -> None:
    line = redact(text)

    assert line.isprintable()
    assert len(line) <= 512


@given(
    st.text(alphabet="abé'\"()[]{}<>=`“” ", min_size=1),
    st.sampled_from(["'{}'", '"{}"', "({})", "got {!r} there", "x={}"]),
)
def test_no_quotes_or_brackets_inside_a_value_let_it_out(value: str, form: str) -> None:
    assert "swordfish" not in redact("refused: " + form.format(value + "swordfish" + value))


# -------------------------------------------------------------------- fingerprints


def _bill(amount: str) -> int:
    return int(amount)


def _ship(amount: str) -> int:
    return int(amount)


def _descend(depth: int) -> int:
    return _descend(depth - 1) if depth else _bill("canary")


def _fingerprint(act: Callable[[], object]) -> str:
    with pytest.raises(ValueError, match="invalid literal") as caught:
        act()
    return summarise(caught.value).fingerprint


def test_the_same_bug_has_the_same_fingerprint_whatever_the_values() -> None:
    prints = {_fingerprint(lambda text=text: _bill(text)) for text in ("canary", "another", "")}  # type: ignore[misc]

    assert len(prints) == 1


def test_a_recursion_has_one_fingerprint_however_deep() -> None:
    assert _fingerprint(lambda: _descend(3)) == _fingerprint(lambda: _descend(sys.getrecursionlimit() // 10))


def test_other_places_classes_and_states_have_other_fingerprints() -> None:
    in_bill = _fingerprint(lambda: _bill("x"))
    in_ship = _fingerprint(lambda: _ship("x"))
    classes = {summarise(kind("x")).fingerprint for kind in (ValueError, TypeError, psycopg.errors.UniqueViolation)}
    states = {
        summarise(psycopg.errors.lookup(state)("x")).fingerprint for state in ("40001", "40P01", "23505", "23503")
    }

    assert len({in_bill, in_ship} | classes | states) == 8


def test_a_database_error_is_placed_where_the_app_called_and_not_inside_the_driver() -> None:
    engine = sqlalchemy.create_engine("sqlite://")

    def first() -> None:
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text("select canary"))

    def second() -> None:
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text("select canary"))

    prints = set()
    for act in (first, second, first):
        with pytest.raises(sqlalchemy.exc.OperationalError) as caught:
            act()
        prints.add(summarise(caught.value).fingerprint)

    engine.dispose()
    assert len(prints) == 2
