"""Asking this process's own Python."""

import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Final

from packaging.requirements import Requirement

from outbox_admin.doctor.facts import Host, Package

_OURS: Final = "fairpost"


def host() -> Host:
    """Python, and what ``outbox`` requires: both processes, which are of this version, and what they require."""
    found = {wanted.name: _package(wanted) for wanted in _required(_OURS, extra="cli")}
    return Host(python=sys.version_info[:2], packages=tuple(found.values()))


def _required(name: str, *, extra: str = "") -> Iterator[Requirement]:
    for line in metadata.requires(name) or ():
        wanted = Requirement(line)
        if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
            yield wanted
            if wanted.name.startswith(f"{_OURS}-") and _package(wanted).version is not None:
                yield from _required(wanted.name)


def _package(wanted: Requirement) -> Package:
    try:
        version = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        version = None
    return Package(
        name=wanted.name,
        version=version,
        wanted=str(wanted.specifier),
        fits=version is not None and wanted.specifier.contains(version, prereleases=True),
    )
