"""What an operator may name as the app, and what is said of the rest."""

from pathlib import Path

import pytest

from consumer.app import load_consumer
from outbox.errors import ConfigError

APP = """
from consumer import Consumer
consumer = Consumer("billing")
idle = Consumer("billing")
number = 7

@consumer.on("orders.order.placed")
def bill(event: dict) -> None: ...
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("sys.path", ["/nowhere"])
    name = f"shop_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(APP)
    (tmp_path / f"{name}_broken.py").write_text("import no_such_module")
    (tmp_path / f"{name}_raising.py").write_text("1 / 0")
    (tmp_path / f"{name}_wrong.py").write_text(
        "from consumer import Consumer\nconsumer = Consumer('billing')\n@consumer.on('a')\ndef bill(): ..."
    )
    return str(tmp_path)


def name_in(directory: str, suffix: str = "") -> str:
    return f"shop_{Path(directory).name.replace('-', '_')}{suffix}"


def test_a_consumer_is_found_by_module_and_attribute(directory: str) -> None:
    found = load_consumer(f"{name_in(directory)}:consumer", directory=directory)
    assert found.group == "billing"


@pytest.mark.parametrize(
    ("suffix", "says"),
    [
        ("", "want module:attribute"),
        (":", "want module:attribute"),
        (":con sumer", "want module:attribute"),
        (":nothing", "want a Consumer as shop_"),
        (":number", "got int"),
        (":idle", "want a Consumer with a handler"),
        ("_gone:consumer", "got no module named shop_"),
        ("_broken:consumer", "got no module named no_such_module"),
        ("_raising:consumer", "got ZeroDivisionError"),
        ("_wrong:consumer", "handler bill: want one parameter for the event, got 0"),
    ],
)
def test_anything_else_is_refused_in_one_sentence(directory: str, suffix: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_consumer(name_in(directory) + suffix, directory=directory)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
