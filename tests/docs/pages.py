"""Pages of Markdown as their readers see them, and the few words in comments that say how a block is to be run."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT: Final = Path(__file__).parents[2]
_MARKDOWN: Final = MarkdownIt("commonmark").enable("table")
_COMMENT: Final = re.compile(r"\s*<!--\s*(.*?)\s*-->\s*", re.DOTALL)
_HIDDEN: Final = re.compile(r"hidden (\w+)\n(.*)", re.DOTALL)
_WORDS: Final = ("page", "not run", "run", "output", "file", "from")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block, or one that readers do not see.

    Args:
        marks: what the comments right before it say, as ``{"not run": "needs a browser"}``.
    """

    page: Path
    line: int
    language: str
    title: str
    text: str
    marks: dict[str, str]
    is_hidden: bool = False

    @property
    def where(self) -> str:
        """Where it is, as editors understand it."""
        return f"{name_of(self.page)}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page: its blocks in order, and what it says of itself as a whole in ``<!-- page: ... -->``."""

    path: Path
    blocks: tuple[Block, ...]
    needs: str
    inline: tuple[tuple[int, str], ...]
    """Code within sentences, with its line."""


def all_pages() -> list[Path]:
    """Every page that readers are given."""
    folders = ("examples", "compose", "relay", "consumer")
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    return sorted([*found, *(path for name in folders for path in (ROOT / name).rglob("README.md"))])


def name_of(page: Path) -> str:
    """A page's name in messages and tables."""
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name


@cache
def tokens_of(path: Path) -> list[Token]:
    """The page at *path*, as CommonMark with tables."""
    return _MARKDOWN.parse(path.read_text())


def read_page(path: Path) -> Page:
    """The page at *path*. Raises ValueError for a comment or an opening line that nobody would understand."""
    needs = ""
    blocks = []
    marks: dict[str, str] = {}
    tokens = tokens_of(path)
    for token in tokens:
        line = (token.map or [0])[0] + 1
        word, rest = _comment(token, f"{name_of(path)}:{line}")
        if word == "page":
            needs = rest
        elif word not in ("", "hidden"):
            marks[word] = rest
        elif word == "hidden" or token.type == "fence":
            info, text = rest.split("\n", 1) if word else (token.info, token.content)
            blocks.append(_block(path, line, info, text, marks, is_hidden=word == "hidden"))
            marks = {}
        elif marks or token.type == "code_block":
            wanted = f"{sorted(marks)} right before a block" if marks else "a fenced block with its language"
            raise ValueError(f"{name_of(path)}:{line}: want {wanted}, got {token.type}")
    return Page(path=path, blocks=tuple(blocks), needs=needs, inline=tuple(_inline(tokens)))


def _comment(token: Token, where: str) -> tuple[str, str]:
    """The word and the rest of a comment of ours; two empty strings for what is none."""
    found = _COMMENT.fullmatch(token.content) if token.type == "html_block" else None
    if not found:
        return "", ""
    if hidden := _HIDDEN.fullmatch(found[1]):
        return "hidden", f"{hidden[1]}\n{hidden[2]}\n"
    word, _, rest = found[1].partition(":")
    if word not in _WORDS:
        wanted = f"want a comment of {', '.join(_WORDS)} or 'hidden LANGUAGE'"
        raise ValueError(f"{where}: {wanted}, got {found[1][:60]!r}")
    return word, rest.strip()


def _block(path: Path, line: int, info: str, text: str, marks: dict[str, str], *, is_hidden: bool) -> Block:
    language, _, options = info.strip().partition(" ")
    title = ""
    for option in shlex.split(options):
        name, _, value = option.partition("=")
        if name != "title":
            raise ValueError(f'{name_of(path)}:{line}: want title="..." behind the language, got {option!r}')
        title = value
    return Block(page=path, line=line, language=language, title=title, text=text, marks=marks, is_hidden=is_hidden)


def _inline(tokens: list[Token]) -> Iterator[tuple[int, str]]:
    for token in tokens:
        for child in token.children or ():
            if child.type == "code_inline":
                yield (token.map or [0])[0] + 1, child.content
