"""A reference page is what the code says today."""

import tomllib
from pathlib import Path

import pytest

from outbox.shell.setting_sources import collect
from outbox.shell.setting_table import settings_of
from outbox.shell.settings import read
from outbox_admin.configuration import PROCESSES, Process
from reference.pages import PAGES

PLACE = Path(__file__).parents[3] / "docs" / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_makes_of_it(name: str) -> None:
    assert (PLACE / name).read_text() == PAGES[name](), "want the page of this code: run 'python -m reference'"


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.name)
def test_every_setting_says_what_it_is(process: Process) -> None:
    assert [row.field for row in settings_of(process.model, prefix=process.prefix) if not row.description] == []


def test_the_example_of_a_file_is_taken_by_every_process(tmp_path: Path) -> None:
    example = (PLACE / "settings.md").read_text().split("```toml\n")[1].split("```")[0]
    (tmp_path / "outbox.toml").write_text(example)
    assert tomllib.loads(example)["relay"]["lease_s"] == 30
    addresses = {"DATABASE_URL": "postgresql://db/shop", "RABBITMQ_URL": "amqp://mq/"}
    for process in PROCESSES:
        assert read(process.model, prefix=process.prefix, sources=collect(addresses, directory=tmp_path)).problems == ()
