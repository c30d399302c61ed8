"""The tutorial, copied line by line by somebody who has Python and nothing else."""

import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, read_page
from tests.support.installs import Release
from tests.support.terminal import Answer, Terminal

# Alone it takes under a minute, half of which is pip's.
pytestmark = [pytest.mark.scenario, pytest.mark.timeout(400)]

PAGE = ROOT / "docs" / "tutorial.md"
_COMMAND_S = 240.0
_LOOK_AGAIN_S = 60.0
# The page tells its reader to ask these again where an answer is not there yet; they change nothing.
_LOOKS = ("python billing.py", "outbox dead groups", "outbox tenant show", "outbox-consumer status")
# It runs in front until Ctrl-C.
_GOES_ON = "outbox dev"
# What the page says is the reader's own.
_OWN = (
    (re.compile(rf"\b(?:laptop|{re.escape(socket.gethostname())}) +\d+\b"), "HOST PID"),
    (re.compile(r"\b[0-9a-f]{16}\b"), "ID"),
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"), "TIME"),
    (re.compile(r"\b(?:\d+ min )?\d+(?:\.\d+)? m?s\b"), "DURATION"),
    (re.compile(r"\b[ocb]\d{4}\b"), "REVISION"),
    (re.compile(r"[ \t]+"), " "),
)


class Reader:
    """Somebody who does what the page says."""

    def __init__(self, directory: Path, environment: dict[str, str], stack: ExitStack) -> None:
        self._directory = directory
        self._environment = environment
        self._stack = stack
        self.terminals: dict[str, Terminal] = {}

    @property
    def project(self) -> Path:
        """The directory that the page makes."""
        return self._directory / "shop"

    def follow(self, block: Block) -> None:
        """Write the block's file, or enter its commands in the terminal that it names."""
        if block.language == "python":
            (self.project / block.title).write_text(block.text)
            return
        assert block.language == "console", f"{block.where}: want a file or a console, got {block.language!r}"
        if block.title not in self.terminals:
            opened = Terminal(self._directory, self._environment)
            self._stack.callback(opened.close)
            self.terminals[block.title] = opened
        for command, shown in _commands(block):
            self._enter(self.terminals[block.title], command, shown, where=block.where)

    def _enter(self, terminal: Terminal, command: str, shown: str, *, where: str) -> None:
        until = time.monotonic() + _LOOK_AGAIN_S
        while True:
            answer = terminal.enter(
                command,
                deadline_s=_COMMAND_S,
                is_enough=lambda text: command == _GOES_ON and _plain(text) == _plain(shown),
            )
            if _is_as_shown(answer, shown):
                return
            if not command.startswith(_LOOKS) or time.monotonic() > until:
                log = self.project / "consumer.log"
                told = f"\nconsumer.log:\n{log.read_text()[-3000:]}" if log.exists() else ""
                pytest.fail(
                    f"{where}: $ {command}\nwant:\n{shown}\ngot {answer.code}:\n{answer.text}{told}", pytrace=False
                )


@pytest.fixture
def reader(tmp_path: Path, release: Release) -> Iterator[Reader]:
    python = Path(getattr(sys, "_base_executable", sys.executable)).resolve().parent
    environment = {
        "PATH": f"{python}:/usr/bin:/bin",
        "HOME": os.environ.get("HOME", str(tmp_path)),
        "LANG": "C.UTF-8",
        # The page's own pip line finds what this tree builds, and all else at the versions that we test with.
        "PIP_FIND_LINKS": str(release.directory),
        "PIP_CONSTRAINT": f"{ROOT / 'constraints.txt'} {release.constraints}",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    with ExitStack() as stack:
        yield Reader(tmp_path, environment, stack)


def test_whoever_follows_the_tutorial_line_by_line_succeeds(reader: Reader) -> None:
    blocks = read_page(PAGE).blocks
    assert len(blocks) > 10
    for block in blocks:
        reader.follow(block)
    assert (reader.project / "dev.env").stat().st_mode & 0o777 == 0o600
    # The page's last step: Ctrl-C in the first terminal.
    assert reader.terminals["terminal 1"].interrupt(deadline_s=30.0).code == 0
    assert not (reader.project / "dev.env").exists()


def test_what_a_reader_may_see_otherwise_is_nothing_but_ids_and_times() -> None:
    assert _plain("a 12 s\n\n b  c0009") == _plain("a 3.5 s\nb c0010")
    assert _plain("replayed 1, refused 0") != _plain("replayed 2, refused 0")
    assert _plain("order 1 of acme: 40 euros") != _plain("order 2 of acme: 40 euros")


def _commands(block: Block) -> Iterator[tuple[str, str]]:
    """Each command, and what the page shows below it."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def _is_as_shown(answer: Answer, shown: str) -> bool:
    """A command that the page shows no output of has to end well; another says what is shown, however it ends."""
    return _plain(answer.text) == _plain(shown) if shown else answer.code == 0


def _plain(text: str) -> list[str]:
    for own, word in _OWN:
        text = own.sub(word, text)
    return [line.strip() for line in text.splitlines() if line.strip()]
