"""Follows the Dockerfile's own lines without Docker: each stage in a folder that stands for its root.

What only a container has is not tried: a user by name, a file system of its own, layers. An interpreter of this machine
stands for the base image's.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from tests.compose.dockerfile import Instruction, Stage, pairs, read_stages

# A folder of the image's own, wherever a line names it.
_OURS = re.compile(r"(?<![\w./-])/(?=(?:src|opt|wheels|app|etc/fairpost)\b)")
_RUN_S = 300.0
#: They change files; the others say how an image is used.
_CHANGING = {"COPY", "RUN", "WORKDIR"}
_SAYING = {"ENV", "LABEL", "EXPOSE", "USER", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
#: Whom the image's processes run as.
UID = 10001


class NotBuilt(AssertionError):
    """A line failed; the message has what it printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A stage that was followed: *root* stands for its file system."""

    root: Path
    environment: Mapping[str, str]
    directory: str

    def local(self, text: str) -> str:
        """*text* with every path of the image's as it is here."""
        return _OURS.sub(f"{self.root}/", text)


class Builder:
    """Follows the stages of one Dockerfile, each once, below *where*."""

    def __init__(self, path: Path, *, context: Path, where: Path) -> None:
        self._stages = {stage.name: stage for stage in read_stages(path)}
        self._context = context
        self._where = where
        self._built: dict[str, Built] = {}
        self._ignored = _rules(context / ".dockerignore")

    def build(self, name: str) -> Built:
        """Follow the stage *name*, and those that it needs, unless that was done. Raises NotBuilt."""
        if name not in self._built:
            self._built[name] = self._follow(self._stages[name])
        return self._built[name]

    def _follow(self, stage: Stage) -> Built:
        root = self._where / stage.name
        environment, directory = {"PATH": os.defpath}, "/"
        if stage.base in self._stages:
            below = self.build(stage.base)
            environment, directory = dict(below.environment), below.directory
            if any(one.name in _CHANGING for one in stage.instructions):
                _copy(below.root, root, moved=(below.root, root))
            else:  # the same layers under another name
                root = below.root
        else:
            self._copy_base(root)
        built = Built(root=root, environment=environment, directory=directory)
        for one in stage.instructions:
            built = self._do(one, built)
        return built

    def _copy_base(self, root: Path) -> None:
        """Python and pip, and nothing else: the packages of whoever runs the tests are not there."""
        base = self._where / ".base"
        if not base.exists():
            subprocess.run([python(), "-m", "venv", str(base / "usr")], check=True, timeout=_RUN_S)
        _copy(base, root, moved=(base, root))

    def _do(self, one: Instruction, built: Built) -> Built:
        match one.name:
            case "ENV":
                more = {
                    name: value.replace("$PATH", built.environment["PATH"]) for name, value in pairs(one.value).items()
                }
                return Built(root=built.root, environment={**built.environment, **more}, directory=built.directory)
            case "WORKDIR":
                Path(built.local(one.value)).mkdir(parents=True, exist_ok=True)
                return Built(root=built.root, environment=built.environment, directory=one.value)
            case "COPY":
                self._put(one.value.split(), built)
            case "RUN":
                run(built, one.value)
            case _:
                if one.name not in _SAYING:
                    raise NotBuilt(f"want an instruction that is followed here, got {one.name}")
        return built

    def _put(self, words: list[str], built: Built) -> None:
        source_root, moved = self._context, None
        if words[0].startswith("--from="):
            other = self.build(words.pop(0).removeprefix("--from="))
            source_root, moved = other.root, (other.root, built.root)
        *sources, target = words
        where = Path(built.local(target if target.startswith("/") else f"{built.directory}/{target}"))
        for source in sources:
            found = source_root / source.lstrip("/")
            if not found.exists() or (moved is None and self._is_ignored(source)):
                raise NotBuilt(f"COPY {source}: want a file that the context holds, got none")
            into_folder = found.is_file() and (target.endswith("/") or where.is_dir())
            _copy(found, where / found.name if into_folder else where, moved=moved)

    def _is_ignored(self, source: str) -> bool:
        """As .dockerignore says: the last rule that fits holds."""
        is_out = False
        for rule in self._ignored:
            pattern, keeps = rule.removeprefix("!"), rule.startswith("!")
            parents = [str(path) for path in (PurePosixPath(source), *PurePosixPath(source).parents)]
            if any(fnmatch(path, pattern) for path in parents if path != "."):
                is_out = not keeps
        return is_out


def run(built: Built, line: str) -> str:
    """What *line* prints, run by a shell as RUN is. Raises NotBuilt."""
    environment = {
        **{name: os.environ[name] for name in ("HOME", "PIP_INDEX_URL", "PIP_CONFIG_FILE") if name in os.environ},
        **{name: built.local(value) for name, value in built.environment.items()},
        # A cache and compiled files are no part of what is tried.
        "PATH": f"{_installed(built)}:{built.root}/usr/bin:{os.defpath}",
        "PIP_NO_CACHE_DIR": "0",
        "PIP_NO_COMPILE": "1",
    }
    done = subprocess.run(
        ["/bin/sh", "-euc", built.local(line)],
        cwd=built.local(built.directory),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_RUN_S,
    )
    if done.returncode:
        raise NotBuilt(f"RUN {line}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def _installed(built: Built) -> str:
    """The image's own folders of programs."""
    own = [part for part in built.environment["PATH"].split(":") if _OURS.match(part)]
    return ":".join(built.local(part) for part in own) or f"{built.root}/usr/bin"


def python() -> str:
    """An interpreter that the image's user may run too, if there is one."""
    here = str(Path(sys.executable).resolve())
    candidates = [here, *(found for found in (shutil.which("python3", path=os.defpath),) if found)]
    return next((one for one in candidates if _serves(one)), here)


def _serves(interpreter: str) -> bool:
    question = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))"
    try:
        asked = subprocess.run(
            [interpreter, "-c", question],
            user=UID if os.geteuid() == 0 else None,
            cwd="/",
            capture_output=True,
            check=False,
            timeout=30,
        )
    except OSError:
        return False
    return asked.returncode == 0


def _rules(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]


def _copy(source: Path, target: Path, *, moved: tuple[Path, Path] | None) -> None:
    """Copy; scripts of an environment, that have its place written in them, are told the new one of *moved*."""
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
        return
    for folder, folders, files in os.walk(source):
        here = target / Path(folder).relative_to(source)
        here.mkdir(parents=True, exist_ok=True)
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        folders[:] = [name for name in folders if name not in links and name != "__pycache__"]
        for name in (*links, *(name for name in files if name != ".env")):
            _put_file(Path(folder) / name, here / name, moved=moved)


def _put_file(source: Path, target: Path, *, moved: tuple[Path, Path] | None) -> None:
    target.unlink(missing_ok=True)
    if source.is_symlink():
        target.symlink_to(source.readlink())
        return
    if moved is not None and (source.parent.name == "bin" or source.name == "pyvenv.cfg"):
        old, new = (str(one).encode() for one in moved)
        target.write_bytes(source.read_bytes().replace(old, new))
        shutil.copymode(source, target)
        return
    if moved is None:
        shutil.copy2(source, target)
    else:  # a layer below: nothing writes to what is there
        os.link(source, target)
