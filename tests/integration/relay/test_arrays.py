"""Arrays that are written as text arrive as they were."""

from outbox.shell.arrays import numbers, texts
from tests.integration.relay.running import App, value


def test_numbers_arrive_as_they_were(app: App) -> None:
    for values in ([], [0], [-(2**63), 2**63 - 1]):
        assert value(app, "select %s::bigint[]", numbers(values)) == values


def test_texts_arrive_as_they_were_whatever_is_in_them(app: App) -> None:
    for values in ([], [""], ["NULL", "null", "a b", "", ",", "{}", "\\", '"', '\\"', "\n", "ä☃"]):
        assert value(app, "select %s::text[]", texts(values)) == values
