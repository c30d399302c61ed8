"""What a command lacks where its extra is not installed.

Nothing but the standard library is imported here: a base install has no more that is of use to a command.
"""

import re
from typing import Final

_OURS: Final = "fairpost"
#: The extra that has all that a program needs.
_EXTRAS: Final = {"outbox": "cli", "outbox-relay": "relay", "outbox-consumer": "consumer"}
_REQUIREMENT: Final = re.compile(r"""([\w.-]+)(?:.*extra == ['"]([\w-]+)['"])?""")


def lacking(program: str, error: Exception) -> str | None:
    """Say in a sentence what to install, if *error* is that a package of the extra is missing; None if it is not."""
    if not isinstance(error, ImportError):
        return None
    extra = _EXTRAS[program]
    # Whichever import failed first: a library may tell of a package that it lacks itself.
    missing = sorted(name for name in _wanted(extra) if not _is_installed(name))
    return f"{program}: want {', '.join(missing)}, got none: pip install '{_OURS}[{extra}]'" if missing else None


def _wanted(extra: str) -> set[str]:
    """What the extra requires, and what the processes among that do: they are distributions of their own."""
    names = _required(_OURS, extra)
    return names.union(*(_required(name) for name in names if name.startswith(f"{_OURS}-") and _is_installed(name)))


def _required(name: str, extra: str | None = None) -> set[str]:
    from importlib.metadata import requires  # noqa: PLC0415 - it takes longer than all of typer

    found = (_REQUIREMENT.match(line) for line in requires(name) or ())
    return {match[1] for match in found if match is not None and match[2] == extra}


def _is_installed(name: str) -> bool:
    """Whether pip knows it. Its package may be an app's: `relay` and `consumer` are names that others have too."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - as above

    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
