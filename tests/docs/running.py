"""A page's blocks, run one after the other as a reader would run them: one namespace, one directory, one database."""

import ast
import asyncio
import contextlib
import doctest
import importlib
import inspect
import io
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any, Final

import psycopg
from sqlalchemy import Connection, Engine, event
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.docs import commands
from tests.docs.checks import CHECKS, BlockFailed, check_part, compare
from tests.docs.pages import Block, Page

_SHELL: Final = ("bash", "sh", "shell", "console")
_COMMAND_S: Final = 50
# What one page has done to these is nothing to the next.
_FRESH: Final = ("tests.docs.shop", "models")


class Run:
    """Runs the blocks of one *page* in *directory*.

    Args:
        environment: what the page's code finds beside the process's own, such as ``DATABASE_URL``.
        replaced: texts that stand for others on the page, such as an address for the one of the test's database.
    """

    def __init__(self, page: Page, directory: Path, environment: dict[str, str], replaced: dict[str, str]) -> None:
        self._page = page
        self._directory = directory
        self._environment = environment
        self._replaced = replaced
        self._names: dict[str, Any] = {"__name__": "page"}
        self._files: list[str] = []
        self._printed = ""
        self._loop: asyncio.Runner | None = None
        self._unused_file = ""
        self._runners = {"python": self._python, "pycon": self._session, "sql": self._sql}
        self._runners |= dict.fromkeys(_SHELL, self._shell)

    def run(self) -> None:
        """Run all. Raises BlockFailed at the first block that is wrong."""
        with self._at_home(), asyncio.Runner() as self._loop, _disposed_engines(self._loop):
            for block in self._page.blocks:
                try:
                    self._one(block)
                except BlockFailed:
                    raise
                except Exception as error:
                    raise BlockFailed(f"{block.where}: {self._told(error)}") from error
        if self._unused_file:
            raise BlockFailed(f"{self._unused_file}: marked as a file, and no command that is run comes after it")

    def _one(self, block: Block) -> None:
        text = block.text
        for shown, real in self._replaced.items():
            text = text.replace(shown, real)
        if block.language not in {*self._runners, *CHECKS}:
            wanted = ", ".join([*self._runners, *CHECKS])
            raise BlockFailed(f"{block.where}: want a language of {wanted}, got {block.language or 'none'!r}")
        if "output" in block.marks:
            compare(block, self._printed)
        elif "from" in block.marks:
            check_part(block)
        elif block.language in CHECKS:
            CHECKS[block.language](text)
            self._write(block, text)
        else:
            self._runners[block.language](block, text)

    # ------------------------------------------------------------------ Python

    def _python(self, block: Block, text: str) -> None:
        code = compile(text, block.where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        is_new = block.title not in self._files
        self._write(block, text)
        if "not run" in block.marks:
            return
        if "file" in block.marks:
            self._unused_file = block.where
            return
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if not block.title:
                self._execute(code, self._names)
            elif not Path(block.title).name.startswith(("test_", "conftest")):
                name = block.title.removesuffix(".py").replace("/", ".")
                module = importlib.import_module(name)
                if not is_new:
                    self._execute(code, vars(module))
                self._names |= {key: value for key, value in vars(module).items() if not key.startswith("__")}
        self._printed = printed.getvalue()

    def _execute(self, code: CodeType, names: dict[str, Any]) -> None:
        assert self._loop is not None
        if code.co_flags & inspect.CO_COROUTINE:
            self._loop.run(eval(code, names))  # noqa: S307 - our own pages
        else:
            exec(code, names)  # noqa: S102 - our own pages

    def _session(self, block: Block, text: str) -> None:
        test = doctest.DocTestParser().get_doctest(text, self._names, block.where, str(block.page), block.line)
        told: list[str] = []
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=told.append, clear_globs=False)
        if told:
            raise BlockFailed("".join(told))
        self._names |= test.globs

    # ------------------------------------------------------------------ others

    def _shell(self, block: Block, text: str) -> None:
        lines = block.text.splitlines()
        if block.language == "console":
            script = "\n".join(line[2:] for line in lines if line.startswith("$ "))
            text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
        else:
            script = block.text
        if not script.strip():
            raise BlockFailed(f"{block.where}: want commands, in a 'console' block behind '$ '")
        if found := commands.problems(script):
            raise BlockFailed(f"{block.where}: {'; '.join(found)}")
        if "run" not in block.marks:
            return
        self._unused_file = ""
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "100"}
        ended = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self._directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
        self._printed = ended.stdout
        if ended.returncode != int(block.marks["run"] or 0):
            raise BlockFailed(f"{block.where}: ended with {ended.returncode}\n{ended.stdout}{ended.stderr}")
        if block.language == "console":
            compare(block, ended.stdout, [line for line in lines if not line.startswith("$ ")])

    def _sql(self, block: Block, text: str) -> None:
        self._write(block, text)
        if "not run" in block.marks:
            return
        address = self._environment["DATABASE_URL"].replace("+psycopg", "")
        with psycopg.connect(address) as connection:
            connection.execute(text.encode())
            if "rolled back" in self._page.needs:
                connection.rollback()

    def _write(self, block: Block, text: str) -> None:
        if not block.title:
            return
        path = self._directory / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if block.title in self._files else "w") as file:
            file.write(text)
        self._files.append(block.title)

    @contextlib.contextmanager
    def _at_home(self) -> Iterator[None]:
        """In the page's directory, with its environment; the process is afterwards as it was before."""
        environment, modules, here = dict(os.environ), set(sys.modules), Path.cwd()
        os.environ.update(self._environment)
        sys.path.insert(0, str(self._directory))
        os.chdir(self._directory)
        try:
            yield
        finally:
            os.chdir(here)
            sys.path.remove(str(self._directory))
            os.environ.clear()
            os.environ.update(environment)
            for name in set(sys.modules) - modules:
                if name in _FRESH or str(getattr(sys.modules[name], "__file__", "")).startswith(str(self._directory)):
                    del sys.modules[name]
                    package, _, attribute = name.rpartition(".")
                    if hasattr(sys.modules.get(package), attribute):
                        delattr(sys.modules[package], attribute)

    def _told(self, error: Exception) -> str:
        """The error, and the line of the block at which it happened."""
        lines = [frame.lineno or 0 for frame in traceback.extract_tb(error.__traceback__) if ".md:" in frame.filename]
        return f"{f'line {lines[-1]}: ' if lines else ''}{type(error).__name__}: {error}"


@contextlib.contextmanager
def _disposed_engines(loop: asyncio.Runner) -> Iterator[None]:
    """Close what the engines of a page have open: a page, unlike a test, does not say so at its end."""
    used: set[Engine] = set()

    def remember(connection: Connection) -> None:
        used.add(connection.engine)

    event.listen(Engine, "engine_connect", remember)
    try:
        yield
    finally:
        event.remove(Engine, "engine_connect", remember)
        for engine in used:
            if engine.dialect.is_async:
                loop.run(AsyncEngine(engine).dispose())
            else:
                engine.dispose()
