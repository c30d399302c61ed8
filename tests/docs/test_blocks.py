"""Every block of every page does what the page says: see README.md beside this file for how a page says how."""

import re
import shlex
from pathlib import Path

import pytest

from tests.docs import commands
from tests.docs.pages import ROOT, all_pages, name_of, read_page
from tests.docs.running import Run
from tests.docs.setting_checks import name_problems

# Blocks that are read and not run, by page. Whoever adds one adds its reason on the page and counts it here.
NOT_RUN: dict[str, int] = {}
# A page that one test of its own follows from its first line to its last.
WHOLE = "run by "
DATABASE = re.compile(r'database(?: as "([^"]+)")?')
BROKER = re.compile(r'rabbitmq(?: as "([^"]+)")?')


@pytest.mark.parametrize("path", all_pages(), ids=name_of)
def test_every_block_does_what_its_page_says(path: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    page = read_page(path)
    if page.needs.startswith(WHOLE):
        assert (ROOT / page.needs.removeprefix(WHOLE)).exists()
        return
    environment: dict[str, str] = {}
    replaced: dict[str, str] = {}
    for pattern, fixture, variable in (
        (DATABASE, "migrated_database", "DATABASE_URL"),
        (BROKER, "vhost", "RABBITMQ_URL"),
    ):
        if found := pattern.search(page.needs):
            address = request.getfixturevalue(fixture).replace("postgresql://", "postgresql+psycopg://")
            environment[variable] = address
            if found[1]:
                replaced[found[1]] = address
    Run(page, tmp_path, environment, replaced).run()


@pytest.mark.parametrize("path", all_pages(), ids=name_of)
def test_what_is_mentioned_in_a_sentence_exists(path: Path) -> None:
    found = []
    for line, text in read_page(path).inline:
        where = f"{name_of(path)}:{line}"
        if re.match(r"outbox(-relay|-consumer)? [a-z-]", text):
            # `retry ID | discard ID` names several; what is in brackets may be left out.
            plain = re.sub(r"[\[\]]", "", text.partition(" | ")[0])
            found += [
                f"{where}: {told}" for told in commands.invocation_problems(shlex.split(plain), is_complete=False)
            ]
        for name in re.findall(r"\bOUTBOX_[A-Z_]+\b", text):
            found += [f"{where}: {told}" for told in name_problems(name) if not name.endswith("_")]
    assert not found


@pytest.mark.parametrize("path", all_pages(), ids=name_of)
def test_a_block_is_left_out_for_a_reason_and_is_counted(path: Path) -> None:
    left_out = [block for block in read_page(path).blocks if "not run" in block.marks]
    assert all(len(block.marks["not run"]) > 10 for block in left_out)
    assert len(left_out) == NOT_RUN.get(name_of(path), 0)


@pytest.mark.parametrize("path", all_pages(), ids=name_of)
def test_what_readers_do_not_see_is_little(path: Path) -> None:
    """A page whose code needs more than that beside it leaves out what its readers need too."""
    sizes = [len(block.text.splitlines()) for block in read_page(path).blocks if block.is_hidden]
    assert max(sizes, default=0) <= 30
    assert sum(sizes) <= 60


def test_no_page_is_counted_that_does_not_exist() -> None:
    assert {ROOT / name for name in NOT_RUN} <= set(all_pages())
