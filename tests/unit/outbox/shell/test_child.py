"""A process and the one that started it: messages both ways, and each learns of the other's end."""

import asyncio
import os
import signal
import sys

import pytest

from outbox.shell.child import Child, Note, own_command

ECHO = """
import asyncio, sys
from outbox.shell.child import parent

async def main():
    link = await parent(int(sys.argv[1]))
    async for note in link.notes():
        link.send({"heard": note.content}, note.data)
    print("parent gone", flush=True)
    link.close()

asyncio.run(main())
"""


async def test_what_is_sent_comes_back_whatever_its_size() -> None:
    child = await Child.start([sys.executable, "-c", ECHO])
    data = os.urandom(3_000_000)
    child.link.send({"number": 1}, data)
    child.link.send({"text": 'zoë "\n'})
    assert await child.link.receive() == Note(content={"heard": {"number": 1}}, data=data)
    assert await child.link.receive() == Note(content={"heard": {"text": 'zoë "\n'}})
    child.kill()
    assert await child.ended() == -signal.SIGKILL


async def test_a_child_hears_of_its_parents_end_and_a_parent_of_its_childs(capfd: pytest.CaptureFixture[str]) -> None:
    child = await Child.start([sys.executable, "-c", ECHO])
    child.link.close()
    assert await child.ended() == 0
    assert capfd.readouterr().out == "parent gone\n"
    child = await Child.start([sys.executable, "-c", ECHO])
    receiving = asyncio.create_task(child.link.receive())
    child.kill()
    assert await asyncio.wait_for(receiving, 5) is None
    child.link.send({"nobody": "hears"})
    await child.ended()


async def test_a_module_of_the_working_directory_does_not_take_the_place_of_ours(
    tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with open("consumer.py", "w") as module:
        module.write("raise SystemExit(3)")
    command = own_command("consumer", "--help")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    assert await process.wait() == 0
