"""Where the engine raises alerts: into the log at once, and to whoever else wants them, each at its own pace."""

import asyncio
import inspect
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import structlog

from consumer.api import AlertHook
from consumer.decide.repeats import Repeats
from consumer.decide.report import report_of
from consumer.engine.slot import LoopThread
from consumer.ports import Alert, AlertKind, Alerts

_WAITING_MAX: Final = 100
_HOOK_S: Final = 30.0
_LAST_S: Final = 2.0
_log = structlog.get_logger("consumer.alerts")


class Alarm:
    """Raises one group's alerts; see ``consumer.ports.Alerts``."""

    def __init__(self, group: str, sinks: Sequence[Alerts] = (), *, repeats: Repeats | None = None) -> None:
        self._group = group
        self._repeats = repeats if repeats is not None else Repeats()
        self._waiting = [(sink, asyncio.Queue[Alert](_WAITING_MAX)) for sink in sinks]

    def sound(
        self,
        kind: AlertKind,
        text: str,
        *,
        tenant: str | None = None,
        event_type: str | None = None,
        handler: str | None = None,
    ) -> None:
        """Raise an alert, on the engine's loop. Returns at once; repeats are held back and told together later.

        Args:
            text: one sentence that says what happened and what to do. Nothing of a payload, nor an error's own words.
        """
        alert = Alert(kind=kind, group=self._group, text=text, tenant=tenant, event_type=event_type, handler=handler)
        told = self._repeats.tell(alert, time.monotonic())
        if told is not None:
            self._tell(told)

    async def repeat(self) -> float:
        """Tell what was held back long enough; says after how many seconds to do it again."""
        for alert in self._repeats.due(time.monotonic()):
            self._tell(alert)
        return 1.0

    async def send(self) -> None:
        """Send to every sink, for ever; one that is slow or broken keeps no other waiting."""
        async with asyncio.TaskGroup() as tasks:
            for sink, waiting in self._waiting:
                tasks.create_task(_send_to(sink, waiting))

    async def close(self) -> None:
        """Let what waits be sent, for two seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_S):
                await asyncio.gather(*(waiting.join() for _, waiting in self._waiting))
        for sink, _ in self._waiting:
            if isinstance(sink, HookAlerts):
                sink.close()

    def _tell(self, alert: Alert) -> None:
        write = _log.error if alert.kind.is_error else _log.warning
        write(
            "alert raised",
            kind=alert.kind.value,
            text=alert.text,
            group=alert.group,
            tenant=alert.tenant,
            event_type=alert.event_type,
            handler=alert.handler,
            count=alert.count,
        )
        for sink, waiting in self._waiting:
            try:
                waiting.put_nowait(alert)
            except asyncio.QueueFull:
                _log.warning("alert not sent", sink=type(sink).__name__, kind=alert.kind.value, error="too many wait")


class HookAlerts:
    """Calls an app's function. One that is not async runs in a thread of its own, so it may block."""

    def __init__(self, hook: AlertHook) -> None:
        self._hook = hook
        self._is_async = inspect.iscoroutinefunction(hook)
        self._thread: LoopThread | None = None

    async def send(self, alert: Alert) -> None:
        """As the port says; gives up on a hook after 30 s."""
        if self._thread is None and not self._is_async:
            self._thread = LoopThread("consumer-alerts")
        async with asyncio.timeout(_HOOK_S):
            await (self._call(alert) if self._thread is None else self._thread.run(self._call(alert)))

    def close(self) -> None:
        """Let its thread end, if it has one, and when the hook lets it."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.stop()

    async def _call(self, alert: Alert) -> None:
        returned = self._hook(alert)
        if inspect.isawaitable(returned):
            await returned


async def _send_to(sink: Alerts, waiting: "asyncio.Queue[Alert]") -> None:
    while True:
        alert = await waiting.get()
        try:
            await sink.send(alert)
        except Exception as error:  # noqa: BLE001 - whatever a hook or a target does, alerting goes on
            message = report_of(error).message
            _log.warning("alert not sent", sink=type(sink).__name__, kind=alert.kind.value, error=message)
        finally:
            waiting.task_done()
