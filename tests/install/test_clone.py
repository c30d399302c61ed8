"""A clone, installed without a registry that has any of ours."""

import json
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest

from outbox.shell.exits import DONE
from tests.support.installs import ROOT, SOURCES, Environment

# As the clean environments beside this: packages come at a registry's pace.
pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]


def test_pip_takes_a_clones_three_folders_for_what_the_extras_ask_for(tmp_path: Path) -> None:
    made = Environment(tmp_path / "venv", python=Path(sys.executable))
    made.install(f"{ROOT}[all]", str(ROOT / "relay"), str(ROOT / "consumer"))
    found = {one.name: one for one in distributions(path=[str(made.site_packages)]) if one.name in SOURCES}
    assert {name: _origin(one) for name, one in found.items()} == {
        name: path.as_uri() for name, path in SOURCES.items()
    }
    for command in ("outbox", "outbox-relay", "outbox-consumer"):
        done = made.run(command, "--version")
        assert (done.returncode, done.stderr) == (DONE, "")


def _origin(one: Distribution) -> str:
    url: str = json.loads(one.read_text("direct_url.json") or "{}")["url"]
    return url
