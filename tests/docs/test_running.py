"""The runner itself: what is wrong on a page is found, and what is right is not."""

from pathlib import Path

import pytest

from tests.docs.checks import BlockFailed
from tests.docs.commands import invocation_problems
from tests.docs.pages import read_page
from tests.docs.running import Run

RIGHT = {
    "names last": "```python\nx = 1\n```\n\ntext\n\n```python\nassert x == 1\n```\n",
    "await": "```python\nimport asyncio\n\nawait asyncio.sleep(0)\n```\n",
    "a file in two parts": (
        '```python title="app.py"\nx = 1\n```\n```python title="app.py"\ny = x + 1\n```\n'
        '```python title="use.py"\nfrom app import y\n\nprint(y)\n```\n<!-- output -->\n```text\n2\n```\n'
    ),
    "a file for a command": (
        '<!-- file -->\n```python title="a.py"\nprint(1)\n```\n<!-- run -->\n```console\n$ python a.py\n1\n```\n'
    ),
    "an exit code": "<!-- run: 1 -->\n```bash\nfalse\n```\n",
    "dots": "<!-- run -->\n```console\n$ python -c 'print(12345)'\n1...5\n```\n",
    "a part of a file": "<!-- from: consumer/limits.py -->\n```python\nfrom dataclasses import dataclass\n```\n",
    "in a list": "1. one\n\n   ```python\n   x = 1\n   assert x\n   ```\n",
    "placeholders": "```bash\noutbox deferred retry ID && outbox-consumer run a:b --processes N # it's\n```\n",
    "set": "```toml\n[relay]\nlease_s = 3\n```\n```bash\nexport OUTBOX_RELAY_LEASE_S=3 DATABASE_URL=$URL\n```\n",
    "not run": "<!-- not run: nobody has that server -->\n```python\nraise SystemExit\n```\n",
    "hidden": "<!-- hidden python\nx = 1\n-->\n\n```python\nassert x\n```\n",
}
WRONG = {
    "no language": "```\nx\n```\n",
    "a language nobody runs": "```ruby\nx\n```\n",
    "an excerpt in no language": "<!-- from: consumer/limits.py -->\n```\nfrom dataclasses import dataclass\n```\n",
    "an error": "```python\n1 / 0\n```\n",
    "bad syntax": "<!-- not run: nobody has that server -->\n```python\nx = = 1\n```\n",
    "a hidden assertion": "```python\nx = 1\n```\n\n<!-- hidden python\nassert x == 2\n-->\n",
    "another output": "```python\nprint(1)\n```\n<!-- output -->\n```text\n2\n```\n",
    "another output of a command": "<!-- run -->\n```console\n$ echo hi\nho\n```\n",
    "a command that fails": "<!-- run -->\n```bash\nfalse\n```\n",
    "no such command": "```bash\noutbox migrat\n```\n",
    "no such option": "```console\n$ outbox-relay run --foo\n```\n",
    "a required value": "```bash\noutbox group add\n```\n",
    "no such program": "```bash\noutbx migrate\n```\n",
    "no such extra": "```bash\npip install 'fairpost[relai]'\n```\n",
    "no such folder": "```bash\npip install . ./relai\n```\n",
    "a clone without its processes": "```bash\npip install '.[all]'\n```\n",
    "no such target": "```bash\nmake tset\n```\n",
    "no such setting": "```env\nOUTBOX_RELAY_CHUNKS=1\n```\n",
    "no such setting, exported": "```bash\nexport OUTBOX_BROKR=postgres\n```\n",
    "a value that is none": "```env\nOUTBOX_RELAY_LEASE_S=soon\n```\n",
    "settings that do not fit together": "```bash\nexport OUTBOX_BROKER=postgres OUTBOX_QUEUE_KIND=classic\n```\n",
    "no such key": "```toml\n[relay]\nlease = 3\n```\n",
    "toml": "```toml\na =\n```\n",
    "yaml": "```yaml\na: [\n```\n",
    "json": "```json\n{'a': 1}\n```\n",
    "a session": "```pycon\n>>> 1 + 1\n3\n```\n",
    "not a part of the file": "<!-- from: consumer/limits.py -->\n```python\nfoo = 1\n```\n",
    "a file that nothing uses": '<!-- file -->\n```python title="a.py"\nx = 1\n```\n',
    "a word in a comment": "<!-- nt run: because -->\n```python\nx = 1\n```\n",
    "a comment that is lost": "<!-- run -->\n\ntext\n",
    "indented": "text\n\n    code\n",
}


def run(markdown: str, directory: Path) -> None:
    path = directory / "page.md"
    path.write_text(markdown)
    Run(read_page(path), directory, {}, {}).run()


@pytest.mark.parametrize("markdown", RIGHT.values(), ids=RIGHT)
def test_a_page_that_is_right_passes(markdown: str, tmp_path: Path) -> None:
    run(markdown, tmp_path)


@pytest.mark.parametrize("markdown", WRONG.values(), ids=WRONG)
def test_a_page_that_is_wrong_fails(markdown: str, tmp_path: Path) -> None:
    with pytest.raises((BlockFailed, ValueError), match=r"page\.md:\d"):
        run(markdown, tmp_path)


@pytest.mark.parametrize("words", ["outbox migrat", "outbox dead replay --perhaps", "outbox-relay runn"])
def test_a_mention_of_what_does_not_exist_is_found(words: str) -> None:
    assert invocation_problems(words.split(), is_complete=False)


@pytest.mark.parametrize("words", ["outbox dead", "outbox group add", "outbox dead replay --per-s", "outbox replay"])
def test_a_mention_may_leave_out_what_a_command_requires(words: str) -> None:
    assert not invocation_problems(words.split(), is_complete=False)
