"""The pages tell what the code does."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from admin.settings import PREFIX as ADMIN_PREFIX
from admin.settings import AdminSettings
from consumer.settings import PREFIX as CONSUMER_PREFIX
from consumer.settings import ConsumerSettings
from relay.settings import PREFIX as RELAY_PREFIX
from relay.settings import RelaySettings

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(\w+)` \| (?:`([^`]*)`|(\w+)) \|", re.MULTILINE)


def documented(section: str) -> dict[str, str]:
    page = (ROOT / "docs" / "settings.md").read_text()
    text = page.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return {name: code or word for name, code, word in ROW.findall(text)}


def of_code(model: type[BaseModel], prefix: str) -> dict[str, str]:
    defaults = {}
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else field.default
        shown = "none" if default is None else f"{default:g}" if isinstance(default, float) else str(default)
        defaults[prefix + name.upper()] = shown
    return defaults


@pytest.mark.parametrize(
    ("section", "model", "prefix"),
    [
        ("outbox-relay", RelaySettings, RELAY_PREFIX),
        ("outbox-consumer", ConsumerSettings, CONSUMER_PREFIX),
        ("outbox", AdminSettings, ADMIN_PREFIX),
    ],
)
def test_every_setting_is_documented_with_its_default(section: str, model: type[BaseModel], prefix: str) -> None:
    assert documented(section) == of_code(model, prefix)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
