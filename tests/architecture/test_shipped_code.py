"""What no shipped file may do, read from its syntax tree."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("outbox", "relay", "consumer", "outbox_admin", "migrations")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

# The environment is read once, where a process is put together; the demo also hands it on to the processes it starts.
_COMPOSITION_ROOTS = {
    "relay/cli.py",
    "consumer/cli.py",
    "outbox_admin/config_cli.py",
    "outbox_admin/demo_cli.py",
    "outbox_admin/doctor_cli.py",
    "outbox_admin/pytest_plugin.py",
    "outbox_admin/demo/processes.py",
    "outbox_admin/settings.py",
    "outbox/shell/completion.py",
}
_ENVIRONMENT = {"os.environ", "os.environb", "os.getenv", "os.getenvb"}
# They run what they are given, or build any object from it.
_DANGEROUS_MODULES = {"dill", "jsonpickle", "marshal", "pickle", "shelve", "yaml"}
_DANGEROUS_CALLS = {"eval", "exec", "os.system", "os.popen"}


def _names(tree: ast.AST) -> Iterator[str]:
    """Every dotted name that is used or imported."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute() | ast.Name():
                yield ast.unparse(node)
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            case _:
                pass


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


@pytest.fixture(params=FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])
def file(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_the_environment_is_read_in_composition_roots_only(file: Path) -> None:
    name = file.relative_to(ROOT).as_posix()
    if name not in _COMPOSITION_ROOTS:
        assert _ENVIRONMENT.isdisjoint(_names(ast.parse(file.read_text())))


def test_no_file_runs_or_unpickles_what_it_is_given(file: Path) -> None:
    tree = ast.parse(file.read_text())
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    modules = {name.split(".")[0] for node in imports for name in _names(node)}
    assert modules.isdisjoint(_DANGEROUS_MODULES)
    called = {ast.unparse(call.func) for call in _calls(tree)}
    assert called.isdisjoint(_DANGEROUS_CALLS)


def test_no_command_goes_through_a_shell_line(file: Path) -> None:
    keywords = [keyword for call in _calls(ast.parse(file.read_text())) for keyword in call.keywords]
    assert not [keyword for keyword in keywords if keyword.arg == "shell" and ast.unparse(keyword.value) != "False"]


def test_nothing_waits_by_the_clock_in_a_test() -> None:
    sleeping = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        called = {ast.unparse(call.func) for call in _calls(ast.parse(path.read_text()))}
        if "time.sleep" in called:
            sleeping.append(path.relative_to(ROOT).as_posix())
    assert not sleeping, "wait with tests.support.wait.until instead"
