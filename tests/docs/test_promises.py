"""What README and the guarantees promise, and the tests that hold it: a promise without one is not made."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, all_pages, name_of, tokens_of

TESTS = {
    "a committed event is published; a rolled-back one never is": [
        "test_killed_in_mid_batch_it_loses_nothing",
        "test_a_rolled_back_event_is_never_published",
        "test_a_broker_killed_during_ten_thousand_publishes_loses_none",
        "test_after_an_outage_both_work_again_within_ten_seconds_and_no_attempt_was_spent",
    ],
    "a handler's effect in its database happens exactly once per event": [
        "test_what_is_delivered_twice_has_one_effect",
        "test_a_connection_cut_inside_commit_leaves_one_effect",
        "test_nothing_is_lost_doubled_or_reordered_when_both_processes_are_killed_again_and_again",
    ],
    "events with one ordering key are handled in order, one at a time": [
        "test_racing_processes_handle_a_key_in_order_and_alone",
        "test_keyed_events_are_handled_in_order_by_several_processes_however_they_arrive",
    ],
    "a tenant's backlog, fault or poison delays nobody else": [
        "test_an_event_committed_behind_a_large_backlog_of_another_tenant_waits_for_a_few_chunks",
        "test_a_quiet_lane_beside_two_hundred_busy_ones_starts_at_once",
        "test_a_killed_worker_costs_the_others_nothing_and_is_replaced",
    ],
    "what fails is retried with backoff, then kept with its reason until replayed": [
        "test_a_failed_attempt_is_retried_and_is_no_duplicate_of_itself",
        "test_what_fails_for_good_is_a_dead_letter_after_the_attempts_that_its_policy_allows",
        "test_an_outage_of_the_broker_dead_letters_nothing_and_counts_no_attempt",
    ],
    "interactive work has at least 30 % of the slots": [
        "test_interactive_work_starts_while_bulk_work_fills_its_slots",
    ],
}


@cache
def defined_tests() -> set[str]:
    """The names of all test functions."""
    files = (ROOT / "tests").rglob("test_*.py")
    return {
        name for file in files for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }


def test_every_promise_of_the_readme_has_tests() -> None:
    table = (ROOT / "README.md").read_text().split("| promise |")[1].split("\n\n")[0]
    promised = [row.split(" | ")[0].strip("| ") for row in table.splitlines()[2:]]
    assert promised == list(TESTS)
    assert {test for tests in TESTS.values() for test in tests} <= defined_tests()


@pytest.mark.parametrize("page", all_pages(), ids=name_of)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    files = {file.stem for file in (ROOT / "tests").rglob("test_*.py")}
    code = [child.content for token in tokens_of(page) for child in token.children or () if child.type == "code_inline"]
    named = {name for name in code if re.fullmatch(r"test_\w+", name)}
    paths = {path for path in code if re.fullmatch(r"(tests|examples|docs|outbox|benchmarks|compose)/[\w./-]+", path)}
    assert named <= files | defined_tests()
    assert {path for path in paths if not (ROOT / path).exists()} == set()


def test_every_row_of_the_guarantees_names_a_test() -> None:
    page = (ROOT / "docs" / "explanation" / "guarantees.md").read_text()
    tables = [table for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE) if " test |\n" in table]
    rows = [row for table in tables for row in table.splitlines()[2:]]
    assert len(rows) > 40
    assert [row for row in rows if not re.search(r"`test_\w+`", row.rsplit(" | ", 1)[1])] == []


@cache
def sources() -> str:
    """All code that serves metrics."""
    return "".join(file.read_text() for part in ("relay", "consumer", "outbox") for file in (ROOT / part).rglob("*.py"))


@pytest.mark.parametrize("page", all_pages(), ids=name_of)
def test_every_metric_that_a_page_names_is_served(page: Path) -> None:
    code = [child.content for token in tokens_of(page) for child in token.children or () if child.type == "code_inline"]
    metrics = {name for text in code for name in re.findall(r"\boutbox_(?:relay|consumer)_[a-z_]+\b", text)}
    # The code has them without the process's name before them, and counters without the suffix.
    bare = {name: re.sub(r"^outbox_(relay|consumer)_|_total$", "", name) for name in metrics}
    assert {name for name in metrics if bare[name] not in sources()} == set()
