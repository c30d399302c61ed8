"""The site is built as `make docs` builds it; every page is there, in the navigation and in the search."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, name_of

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
CONFIG = ROOT / "zensical.toml"


def in_navigation(entry: object) -> Iterator[str]:
    """The pages under a part of the navigation."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, list):
        for part in entry:
            yield from in_navigation(part)
    elif isinstance(entry, dict):
        yield from in_navigation(list(entry.values()))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. Strict: a link or an anchor that leads nowhere ends the build."""
    directory = tmp_path_factory.mktemp("site")
    shutil.copy(CONFIG, directory)
    shutil.copytree(DOCS, directory / "docs")
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    built = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return directory / "build" / "site"


def test_every_page_is_in_the_navigation_once() -> None:
    listed = sorted(in_navigation(tomllib.loads(CONFIG.read_text())["project"]["nav"]))
    there = sorted(str(page.relative_to(DOCS)) for page in PAGES)
    assert listed == there, "give each page of docs/ a place in `nav` of zensical.toml"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_page_is_built_and_found(page: Path, site: Path) -> None:
    name = str(page.relative_to(DOCS).with_suffix(""))
    address = "" if name == "index" else f"{name.removesuffix('/index')}/"
    assert page.read_text().lstrip().startswith(("# ", "<!--"))
    assert "<h1 id=" in (site / address / "index.html").read_text()
    assert address in {item["location"] for item in json.loads((site / "search.json").read_text())["items"]}


def test_the_site_asks_nobody_else_for_scripts_styles_or_fonts(site: Path) -> None:
    elsewhere = r"[\"']?(?:https?:)?//[^\"')>]+"
    asked = []
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        for loads in (r"<(?:script|img|iframe)[^>]*\bsrc=", r"<link[^>]*rel=[^>]*\bhref=", r"url\(", "@import "):
            asked += re.findall(loads + elsewhere, file.read_text())
    assert [link for link in asked if "rel=canonical" not in link] == []
