"""A worker's side of its supervisor: what it reports, and when it is to end."""

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog
from prometheus_client import generate_latest

from outbox.shell.child import Link
from outbox.shell.health import Check, Probe
from outbox.shell.signals import Stop

_REPORT_S: Final = 1.0
_LOOK_S: Final = 0.1
log = structlog.get_logger("consumer.worker")


def obey_signals(stop: Stop) -> None:
    """A signal to one worker drains that one. Only the supervisor can ask for more: systemd signals every process."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _drain, stop)


async def obey(link: Link, stop: Stop) -> None:
    """Do as the supervisor says, until it is gone; then drain: nobody is left who would watch or end this process."""
    async for note in link.notes():
        match note.content.get("stop"):
            case "at once":
                while not stop.is_at_once:
                    stop.request()
            case _:
                _drain(stop)
    if not stop.is_draining:
        log.warning("parent gone")
    _drain(stop)


async def report(link: Link, probes: Mapping[str, Probe], *, incarnation: Callable[[], str]) -> None:
    """Tell the supervisor how this process is, each second and whenever that changes, for ever."""
    told: dict[str, Check] = {}
    told_at = 0.0
    while True:
        checks = {name: probe() for name, probe in probes.items()}
        now = time.monotonic()
        if (checks != told or now - told_at >= _REPORT_S) and not link.is_clogged:
            told, told_at = checks, now
            told_checks = {name: [one.is_ok, one.detail] for name, one in checks.items()}
            link.send({"checks": told_checks, "incarnation": incarnation()}, generate_latest())
        await asyncio.sleep(_LOOK_S)


def _drain(stop: Stop) -> None:
    if not stop.is_draining:
        stop.request()
