"""The pages tell what the code does."""

import dataclasses
from pathlib import Path

import pytest

from consumer import AlertKind, Breaker, Budget, Policy
from consumer.decide.classify import SQLSTATES
from consumer.decide.failure import FailureCategory
from consumer.decide.http_errors import STATUSES

ROOT = Path(__file__).parents[2]


def rows_of(page: str, header: str) -> list[list[str]]:
    """The cells of the table under *header*, a row's first cell without its backticks."""
    text = (ROOT / "docs" / page).read_text().split(f"| {header} |")[1].split("\n\n")[0]
    rows = [[cell.strip().strip("`") for cell in line.strip("| ").split(" | ")] for line in text.splitlines()[2:]]
    return [row for row in rows if row[0] != "any other"]


def test_what_errors_mean_is_documented_as_it_is() -> None:
    states = [(row[0], row[1]) for row in rows_of("explanation/failures.md", "SQLSTATE")]
    statuses = [(row[0], row[1]) for row in rows_of("explanation/failures.md", "HTTP status")]
    assert states == [(pattern, category.value) for pattern, category in SQLSTATES]
    assert statuses == [(pattern, category.value) for pattern, category in STATUSES]
    assert {row[0] for row in rows_of("explanation/failures.md", "category")} == set(FailureCategory)


@pytest.mark.parametrize(("header", "kind"), [("policy", Policy), ("budget", Budget), ("breaker", Breaker)])
def test_the_fields_of_a_policy_are_documented_with_their_defaults(header: str, kind: type[Policy]) -> None:
    told = {row[0]: row[1].strip("`") for row in rows_of("explanation/failures.md", header)}
    fields = {field.name: field.default for field in dataclasses.fields(kind)}
    for name in {"budget", "breaker"} & fields.keys():
        fields[name] = "below"
    shown = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in fields.items()}
    assert told == shown


def test_every_alert_is_documented_with_its_level() -> None:
    told = {row[0]: row[1] for row in rows_of("explanation/failures.md", "kind")}
    assert told == {kind.value: "error" if kind.is_error else "warning" for kind in AlertKind}
