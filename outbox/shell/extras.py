"""What a command lacks where its extra is not installed.

Nothing but the standard library is imported here: a base install has no more that is of use to a command.
"""

import re
from importlib.util import find_spec
from typing import Final

_DISTRIBUTION: Final = "fairpost"
#: The extra that has all that a program needs.
_EXTRAS: Final = {"outbox": "cli", "outbox-relay": "relay", "outbox-consumer": "consumer"}
_REQUIREMENT: Final = re.compile(r"""([\w.-]+).*extra == ['"]([\w-]+)['"]""")


def lacking(program: str, error: Exception) -> str | None:
    """Say in a sentence what to install, if *error* is that a package of an extra is missing; None if it is not."""
    if not isinstance(error, ImportError):
        return None
    own = _EXTRAS[program]
    # A library may tell of a package that it lacks itself. Of another program's extra only what was asked for counts.
    named = next((one for one in (own, *_EXTRAS.values()) if _missing(one) & {error.name, *_missing(own)}), None)
    if named is None:
        return None
    return f"{program}: want {', '.join(sorted(_missing(named)))}, got none: pip install '{_DISTRIBUTION}[{named}]'"


def _missing(extra: str) -> set[str]:
    return {package for package in _packages(extra) if find_spec(package) is None}


def _packages(extra: str) -> set[str]:
    from importlib.metadata import requires  # noqa: PLC0415 - it takes longer than all of typer

    # Each of these distributions is named as its package is, but for hyphens and "python-".
    found = (_REQUIREMENT.match(line) for line in requires(_DISTRIBUTION) or ())
    names = (match[1] for match in found if match is not None and match[2] == extra)
    return {name.removeprefix("python-").replace("-", "_") for name in names}
