"""What a line of log may hold."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from outbox.shell import logs


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def stream() -> io.StringIO:
    written = io.StringIO()
    logs.configure(level="info", format="auto", stream=written)
    return written


def _record(stream: io.StringIO) -> dict[str, object]:
    (line,) = stream.getvalue().splitlines()
    record: dict[str, object] = json.loads(line)
    return record


def test_off_a_terminal_a_record_is_one_json_object(stream: io.StringIO) -> None:
    structlog.get_logger("relay.loop").info("delivery settled", tenant="acme", attempt=1, waited_s=0.5, dead=None)
    record = _record(stream)
    assert record.pop("timestamp")
    assert record == {
        "event": "delivery settled",
        "level": "info",
        "logger": "relay.loop",
        "tenant": "acme",
        "attempt": 1,
        "waited_s": 0.5,
        "dead": None,
    }


def test_on_a_terminal_a_record_is_text() -> None:
    terminal = _Terminal()
    logs.configure(level="info", format="auto", stream=terminal)
    structlog.get_logger().info("delivery settled", tenant="acme")
    assert "delivery settled" in terminal.getvalue()
    assert not terminal.getvalue().startswith("{")


@pytest.mark.parametrize("harm", ["\n", "\r", "\x1b[2J", "\x9b2J", "\x00", "\u202e", "\u2066", "\u2028", "\x7f"])
def test_no_field_can_move_the_cursor_or_turn_the_text(stream: io.StringIO, harm: str) -> None:
    structlog.get_logger().info("seen", **{f"key{harm}": "v"}, tenant=f"a{harm}b", nested={"x": [f"c{harm}d"]})
    logging.getLogger("library").error("broken %s", f"e{harm}f")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    for line in lines:
        assert harm not in str(json.loads(line))
        assert harm not in line


def test_bytes_are_logged_as_their_size_and_long_text_is_cut(stream: io.StringIO) -> None:
    structlog.get_logger().info("seen", body=b"secret payload", text="x" * 100_000)
    record = _record(stream)
    assert record["body"] == "<14 bytes>"
    assert len(str(record["text"])) < 2100


def test_a_password_in_an_address_is_masked(stream: io.StringIO) -> None:
    structlog.get_logger().error("connection lost", error="cannot reach amqp://u:s3cret@h/v")
    assert "s3cret" not in stream.getvalue()
    assert "amqp://u:***@h/v" in stream.getvalue()


def test_an_exception_keeps_the_lines_of_its_traceback_and_nothing_harmful(stream: io.StringIO) -> None:
    try:
        raise ValueError("bad \x1b[31m value")
    except ValueError:
        structlog.get_logger().exception("handler failed")
    told = str(_record(stream)["exception"])
    assert "Traceback" in told.splitlines()[0]
    assert "\x1b" not in told


def test_libraries_are_heard_from_warnings_on_and_an_apps_own_log_from_the_level(stream: io.StringIO) -> None:
    logging.getLogger("sqlalchemy.engine").info("noise")
    logging.getLogger("sqlalchemy.pool").warning("connection lost")
    logging.getLogger("aiormq.connection").error("what our adapter reports itself")
    logging.getLogger("shop.handlers").info("billed")
    logging.getLogger("shop.handlers").debug("detail")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["connection lost", "billed"]


def test_every_record_says_which_process_wrote_it_libraries_ones_too() -> None:
    written = io.StringIO()
    logs.configure(level="info", format="json", stream=written, fields={"worker": 3})
    structlog.get_logger("a").info("started")
    logging.getLogger("b").warning("slow")
    assert [json.loads(line)["worker"] for line in written.getvalue().splitlines()] == [3, 3]
