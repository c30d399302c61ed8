"""What is held against a block that is not run: its syntax, our settings, what was printed, the file it is from."""

import configparser
import io
import json
import re
import tomllib
from collections.abc import Callable
from typing import Final

import yaml
from dotenv import dotenv_values

from tests.docs.pages import ROOT, Block, name_of
from tests.docs.setting_checks import toml_problems, variable_problems


class BlockFailed(AssertionError):
    """A block does not do what its page says; the message begins with the place."""


def _yaml(text: str) -> None:
    list(yaml.safe_load_all(text))


def _ini(text: str) -> None:
    configparser.ConfigParser(interpolation=None).read_string(text)


def _env(text: str) -> None:
    values = dotenv_values(stream=io.StringIO(text))
    found = [f"{name}: want a value" for name, value in values.items() if value is None]
    found += variable_problems({name: value for name, value in values.items() if value is not None})
    if found:
        raise ValueError("; ".join(found))


def _toml(text: str) -> None:
    is_ours = tomllib.loads(text).keys() & {"outbox", "relay", "consumer"}
    if is_ours and (found := toml_problems(text)):
        raise ValueError("; ".join(found))


CHECKS: Final[dict[str, Callable[[str], object]]] = {
    "text": str,
    "toml": _toml,
    "json": json.loads,
    "yaml": _yaml,
    "ini": _ini,
    "env": _env,
}
"""By language: raises an error for text that is none of that language."""


def compare(block: Block, printed: str, wanted: list[str] | None = None) -> None:
    """Raise BlockFailed unless *printed* is what the block shows, where ``...`` stands for anything."""
    shown = "\n".join(wanted) if wanted is not None else block.text
    pattern = r".*?".join(re.escape(part.strip("\n")) for part in shown.strip().split("..."))
    plain = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    if not re.fullmatch(pattern, plain, re.DOTALL):
        raise BlockFailed(f"{block.where}: want\n{shown.strip()}\ngot\n{plain}")


def check_part(block: Block) -> None:
    """Raise BlockFailed unless the block is, word for word, a part of the file that its mark names."""
    source = ROOT / block.marks["from"]
    if not source.is_file():
        raise BlockFailed(f"{block.where}: there is no file {name_of(source)}")
    lines, wanted = [_stripped(source.read_text()), _stripped(block.text)]
    if f"\n{wanted}\n" not in f"\n{lines}\n":
        raise BlockFailed(f"{block.where}: this is not, or no longer, a part of {name_of(source)}")


def _stripped(text: str) -> str:
    """*text* without what is allowed to differ: indentation and empty lines."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())
