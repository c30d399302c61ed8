from typing import Any

import pytest

from outbox.strict_json import LEVELS_MAX, NotStrict, canonical, dumps, loads


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b'{"a":NaN}', "^want finite numbers, got NaN$"),
        (b"-Infinity", "^want finite numbers, got -Infinity$"),
        (b"1e999", "^want finite numbers, got one out of range$"),
        (b"1" * 5_000, "^want finite numbers of a sensible length, got another$"),
        (b'{"a":1,"a":2}', "^want every key once, got a duplicate$"),
        (b'{"a":{"b":1,"\\u0062":2}}', "^want every key once, got a duplicate$"),
        (nested(65), "^want at most 64 levels, got more$"),
        (nested(10_000), "^want at most 64 levels, got more$"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "^want at most 64 levels, got more$"),
        (b'{"a":"\\u0000"}', "^want text without NUL, got .u0000$"),
        (b'{"\\u0000":1}', "^want text without NUL, got .u0000$"),
        (b'[["\\ud800"]]', "^want Unicode text, got a lone surrogate$"),
        (b"\xff", "^want UTF-8, got another byte at position 0$"),
        (b"\xed\xa0\x80", "^want UTF-8, got another byte"),
        (b"", "^want JSON, got an error at position 0$"),
        (b'{"a":canary}', "^want JSON, got an error at position 5$"),
        (b"\xef\xbb\xbf{}", "^want JSON, got an error at position 0$"),
        (b'"a\tb"', "^want JSON, got an error"),
    ],
)
def test_what_readers_disagree_on_is_refused_in_one_sentence(data: bytes, sentence: str) -> None:
    with pytest.raises(NotStrict, match=sentence):
        loads(data)


def circle() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"a": float("nan")}, "^want finite numbers"),
        ({1: "a", "1": "b"}, "^want every key once"),
        ({(1, 2): "a"}, "^want values that JSON has"),
        ({"a": object()}, "^want values that JSON has"),
        (circle(), "^want a tree, got a value that holds itself$"),
        (deep(65), "^want at most 64 levels"),
        (deep(100_000), "^want at most 64 levels"),
        ("\0", "^want text without NUL"),
        ("\ud800", "^want Unicode text"),
        ([10**5_000], "^want finite numbers of a sensible length"),
    ],
)
def test_a_value_that_would_not_be_read_back_is_refused(value: object, sentence: str) -> None:
    with pytest.raises(NotStrict, match=sentence):
        dumps(value)


@pytest.mark.parametrize(
    "value", [{}, [], None, True, 0, -1.5, "ü\U0001f600\\u0000 spelled out", {"a": [{"b": "c"}] * 200}]
)
def test_everything_else_is_read_back(value: object) -> None:
    assert loads(dumps(value)) == value


def test_the_last_allowed_level_is_allowed() -> None:
    assert loads(nested(LEVELS_MAX))


def test_a_large_body_is_refused_where_it_breaks() -> None:
    """Its size is for the caller to limit."""
    with pytest.raises(NotStrict, match=r"^want JSON, got an error at position"):
        loads(b"[" + b"1," * 1_000_000 + b"?")


def test_equal_values_have_one_spelling() -> None:
    assert canonical(b'{ "b": [1, 2], "a": "\\u00fc" }') == canonical('{"a":"ü","b":[1,2]}'.encode())
