"""Every link of every page leads somewhere; those to other sites are only looked at."""

import itertools
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from markdown_it.token import Token

from tests.docs.pages import ROOT, all_pages, name_of, tokens_of

PAGES = sorted({*all_pages(), ROOT / "CHANGELOG.md"})


def links(path: Path) -> list[str]:
    """Where links and pictures of the page lead, in order."""
    inside = [child for token in tokens_of(path) for child in token.children or ()]
    return [
        str(token.attrs.get("href") or token.attrs["src"]) for token in inside if token.type in ("link_open", "image")
    ]


def anchors(path: Path) -> list[str]:
    """The page's headings, by the names that code hosts and the site give them."""
    found: list[str] = []
    tokens = tokens_of(path)
    for opening, inside in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            name = re.sub(r"[^\w\- ]", "", plain(inside).lower()).replace(" ", "-")
            same = sum(re.fullmatch(rf"{re.escape(name)}(-\d+)?", other) is not None for other in found)
            found.append(f"{name}-{same}" if same else name)
    return found


def plain(heading: Token) -> str:
    """A heading's text without its marks."""
    return "".join(child.content for child in heading.children or ())


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_link_leads_somewhere(path: Path) -> None:
    dead = []
    for link in links(path):
        parts = urlsplit(link)
        if parts.scheme:
            is_sane = parts.scheme == "https" and re.fullmatch(r"[a-z0-9.-]+\.[a-z]{2,}", parts.netloc)
            dead += [] if is_sane else [f"{link}: want https:// and a host's name"]
            continue
        target = (path.parent / parts.path).resolve() if parts.path else path
        if not target.exists():
            dead.append(f"{link}: there is no file {target}")
        elif parts.fragment and parts.fragment not in anchors(target):
            dead.append(f"{link}: {name_of(target)} has no such heading; it has {', '.join(anchors(target))}")
    assert not dead


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=name_of)
def test_a_page_of_the_site_leaves_it_only_by_whole_addresses(path: Path) -> None:
    """What lies outside docs/ is not on the site, so a relative link there would be dead for its readers."""
    relative = [link for link in links(path) if not urlsplit(link).scheme and urlsplit(link).path]
    outside = [
        link for link in relative if not (path.parent / urlsplit(link).path).resolve().is_relative_to(ROOT / "docs")
    ]
    assert not outside


def test_headings_have_the_names_that_readers_see(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Who may see `whose`?\n\n## A b\n\n## A b\n\n## Blue and green: another group\n")
    assert anchors(page) == ["who-may-see-whose", "a-b", "a-b-1", "blue-and-green-another-group"]


def test_every_page_is_reached_from_the_first_one_by_links() -> None:
    first = ROOT / "docs" / "index.md"
    reached, left = {first}, [first]
    while left:
        page = left.pop()
        targets = {(page.parent / urlsplit(link).path).resolve() for link in links(page) if not urlsplit(link).scheme}
        found = {target for target in targets if target.suffix == ".md"} - reached
        reached |= found
        left += found
    assert sorted(name_of(page) for page in set((ROOT / "docs").rglob("*.md")) - reached) == []
