"""The wheels in clean environments of every Python there is: the base install first, then each extra."""

import json
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from outbox.shell.exits import CONFIGURATION, DONE
from tests.support.installs import PYTHONS, ROOT, Environment, Release, find_python

# Packages come from a registry, at its pace; alone, and with pip's cache, each takes seconds.
pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

_HERE = Path(__file__).parent
_COMMANDS = {"outbox": "cli", "outbox-relay": "relay", "outbox-consumer": "consumer"}
#: What of an extra is in no base install.
_WANTED = {
    "outbox": "alembic, fairpost-consumer, fairpost-relay, packaging",
    "outbox-relay": "fairpost-relay",
    "outbox-consumer": "fairpost-consumer",
}
_OUTBOX = (
    *("", ".backoff", ".draft", ".errors", ".event", ".lazy", ".naming", ".pending", ".rows", ".schema", ".session"),
    *(".sessions", ".strict_json", ".tenancy", ".trail", ".waker"),
)


@pytest.fixture(scope="module", params=PYTHONS)
def version(request: pytest.FixtureRequest) -> str:
    """Which Python."""
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def base(version: str, release: Release, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The base install, and the driver that the app brings."""
    python = find_python(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on PATH, nor in ~/.pyenv/versions")
    made = Environment(tmp_path_factory.mktemp("environment") / "venv", python=python, constraints=release.constraints)
    made.install(str(release.wheel), "psycopg[binary]")
    return made


@pytest.fixture(scope="module")
def whole(version: str, base: Environment, release: Release) -> Environment:
    """The same environment with each extra's command tried as it came, and all of them in it at last."""
    # Another one comes first, and so without the others' packages, for each Python.
    turn = PYTHONS.index(version) % len(_COMMANDS)
    commands = list(_COMMANDS.items())
    for command, extra in commands[turn:] + commands[:turn]:
        base.install(f"{release.wheel}[{extra}]")
        done = base.run(command, "--help")
        assert (done.returncode, done.stderr) == (DONE, ""), done.stderr
        assert "Usage:" in done.stdout
    return base


def test_three_lines_emit_into_an_existing_apps_database(base: Environment, migrated_database: str) -> None:
    done = base.run("python", str(_HERE / "emitting_app.py"), settings={"DATABASE_URL": migrated_database})
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    with psycopg.connect(migrated_database) as connection:
        rows = connection.execute("select type, tenant, source, convert_from(payload, 'utf8') from outbox.event")
        assert rows.fetchall() == [("billing.invoice.made", "acme", "/svc/billing", '{"id":7}')]
        assert connection.execute("select id from invoice").fetchall() == [(7,)]


def test_importing_it_does_nothing_but_load_the_apps_side(base: Environment) -> None:
    done = base.run("python", "-B", "-W", "error", str(_HERE / "import_probe.py"))
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert Path(told["file"]).is_relative_to(base.site_packages)
    # A model of ours has pydantic look for plugins, as every model has.
    assert [line for line in told["seen"] if " by pydantic." not in line] == []
    assert told["changed"] == {}
    assert told["loaded"] == [f"outbox{module}" for module in _OUTBOX]


@pytest.mark.parametrize("command", _COMMANDS)
def test_a_command_without_its_extra_says_in_a_sentence_what_to_install(base: Environment, command: str) -> None:
    done = base.run(command, "--help")
    assert (done.returncode, done.stdout) == (CONFIGURATION, "")
    assert done.stderr == _lacking(command, _WANTED[command])


def test_each_extra_is_enough_for_its_command(whole: Environment) -> None:
    for command in _COMMANDS:
        done = whole.run(command, "nonsense")
        assert done.returncode != DONE
        assert re.fullmatch(rf"{command}: No such command 'nonsense'.*\n", done.stderr)


def test_migrate_works_where_it_is_installed(whole: Environment, database: str) -> None:
    done = whole.run("outbox", "migrate", settings={"DATABASE_URL": database})
    assert (done.returncode, done.stderr) == (DONE, "")
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["outbox", "consumer", "broker"]


def test_mypy_sees_our_types(version: str, whole: Environment, tmp_path: Path) -> None:
    if version != "{}.{}".format(*sys.version_info):
        pytest.skip("what a type checker reads is the same for every Python")
    app = tmp_path / "typed_app.py"
    app.write_text((_HERE / "typed_app.txt").read_text())
    wrong = [number for number, line in enumerate(app.read_text().splitlines(), 1) if line.endswith("# wrong")]
    checked = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(tmp_path)]
    done = subprocess.run(
        [*checked, "--python-executable", str(whole.bin / "python"), str(app)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"typed_app\.py:(\d+): error", done.stdout)
    assert [int(number) for number in found] == wrong, done.stdout
    assert str(ROOT / "outbox") not in done.stdout


def test_uninstalling_a_process_takes_nothing_of_the_others_and_uninstalling_all_leaves_nothing(
    whole: Environment,
) -> None:
    whole.pip("uninstall", "--yes", "fairpost-relay")
    assert _ours(whole) == {"outbox", "outbox_admin", "migrations", "consumer", *_COMMANDS}
    assert whole.run("outbox-consumer", "--help").returncode == DONE
    assert whole.run("outbox-relay", "--help").stderr == _lacking("outbox-relay", "fairpost-relay")
    # Its help is there still; a command that reads what the relay writes is not.
    assert whole.run("outbox", "--help").returncode == DONE
    done = whole.run("outbox", "deferred", "list")
    assert (done.returncode, done.stdout) == (CONFIGURATION, "")
    assert done.stderr == _lacking("outbox", "fairpost-relay")
    whole.pip("uninstall", "--yes", "fairpost", "fairpost-consumer")
    assert _ours(whole) == set()


def _lacking(command: str, wanted: str) -> str:
    return f"{command}: want {wanted}, got none: pip install 'fairpost[{_COMMANDS[command]}]'\n"


def _ours(environment: Environment) -> set[str]:
    """The packages and programs of ours that are there, whoever brought them."""
    found = {path.name for path in (*environment.site_packages.iterdir(), *environment.bin.iterdir())}
    return found & {"outbox", "relay", "consumer", "outbox_admin", "migrations", *_COMMANDS}
