"""Our console processes from outside: started, watched, frozen, ended."""

import signal
from pathlib import Path

import pytest

from outbox_admin.leash import descendants, is_alive
from tests.support.processes import Processes
from tests.support.wait import until

_LOOP = 'import time\nprint(\'{"event": "started"}\', flush=True)\nwhile True: time.sleep(0.05)'


async def test_a_process_is_seen_from_its_first_line_to_its_exit_code(processes: Processes) -> None:
    process = processes.start("python", "-c", "print('hello'); raise SystemExit(75)")
    assert await process.ended() == 75
    await process.line("hello")
    assert process.output == "hello\n"


async def test_a_process_sees_the_settings_of_its_test_and_no_others(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTBOX_FROM_OUTSIDE", "1")
    script = "import os; print(sorted(name for name in os.environ if name.startswith('OUTBOX_')))"
    process = processes.start("python", "-c", script, settings={"OUTBOX_CHUNK": "5"})
    await process.line("['OUTBOX_CHUNK']")


async def test_a_process_runs_where_its_app_is(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("print('the shop is open')")
    await processes.start("python", "-c", "import shop", cwd=tmp_path).line("the shop is open")


async def test_a_process_that_ends_early_is_not_waited_for(processes: Processes) -> None:
    process = processes.start("python", "-c", "raise SystemExit('no such setting')")
    with pytest.raises(AssertionError, match="no such setting"):
        await process.line("ready", deadline_s=60)


async def test_a_frozen_process_goes_on_when_thawed_and_ends_when_asked(processes: Processes) -> None:
    process = processes.start("python", "-c", _LOOP)
    await process.line("started")
    assert process.records() == [{"event": "started"}]
    process.freeze()
    stat = Path(f"/proc/{process.pid}/stat")
    if stat.exists():
        await until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", what="the process to stop")
    process.thaw()
    process.terminate()
    assert await process.ended() == -signal.SIGTERM


async def test_nothing_of_a_killed_process_runs_on(processes: Processes) -> None:
    script = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {_LOOP!r}]).wait()"
    process = processes.start("python", "-c", script)
    await process.line("started")
    children = descendants(process.pid)
    assert children
    process.kill()
    assert not process.is_running()
    assert not [child for child in children if is_alive(child)]
