"""Asking this process's own Python."""

import sys
from importlib import metadata
from typing import Final

from packaging.requirements import Requirement

from outbox_admin.doctor.facts import Host, Package

_OURS: Final = "fairpost"


def host() -> Host:
    """Python, and what the installed package requires: what an extra wants only where it is installed."""
    found: dict[str, Package] = {}
    for line in metadata.requires(_OURS) or ():
        wanted = Requirement(line)
        is_required = wanted.marker is None or wanted.marker.evaluate({"extra": "cli"})
        if is_required or (wanted.marker is not None and wanted.marker.evaluate({"extra": "all"})):
            package = _package(wanted)
            if is_required or package.version is not None:
                found[wanted.name] = package
    return Host(python=sys.version_info[:2], packages=tuple(found.values()))


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
