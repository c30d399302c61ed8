"""Where alerts go: the log, an app's own hooks and a webhook, none of which holds up another."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import structlog

from consumer import Alert, AlertKind, Consumer
from consumer.engine.alarm import Alarm, HookAlerts
from consumer.ports import Alerts
from consumer.process import _tell_webhook
from consumer.settings import PREFIX, ConsumerSettings
from consumer.webhook import WebhookAlerts, WebhookRefused
from outbox.shell.settings import load
from tests.support.wait import until

ALERT = Alert(kind=AlertKind.POISON, group="billing", text="it happened", tenant="acme", event_type="a.b", handler="h")


@asynccontextmanager
async def ringing(*sinks: Alerts) -> AsyncIterator[Alarm]:
    alarm = Alarm("billing", sinks)
    sending = asyncio.create_task(alarm.send())
    try:
        yield alarm
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


class Target:
    """An HTTP server that answers each request with the next of *answers*, the last one for ever."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/hook?key=1"

    async def __aenter__(self) -> "Target":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:  # one whose client has just gone may not have come to its own end yet
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        self.requests.append(head + await reader.readexactly(length))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer:
            writer.write(answer)
            writer.close()
        else:  # it hangs until the client has had enough
            await reader.read()
            writer.close()


async def test_an_alert_is_a_line_in_the_log_and_reaches_hooks_of_both_kinds() -> None:
    heard: list[tuple[str, Alert]] = []

    async def page(alert: Alert) -> None:
        heard.append(("async", alert))

    def note(alert: Alert) -> None:
        heard.append((threading.current_thread().name, alert))

    with structlog.testing.capture_logs() as lines:
        async with ringing(HookAlerts(page), HookAlerts(note)) as alarm:
            alarm.sound(AlertKind.POISON, "it happened", tenant="acme", event_type="a.b", handler="h")
            alarm.sound(AlertKind.BREAKER_CLOSED, "all is well")
            await until(lambda: len(heard) == 4)
    assert ("async", ALERT) in heard
    assert ("consumer-alerts", ALERT) in heard  # it may block there
    assert [(line["event"], line["log_level"], line["kind"]) for line in lines] == [
        ("alert raised", "error", "poison"),
        ("alert raised", "warning", "breaker_closed"),
    ]


async def test_a_hook_that_fails_or_hangs_keeps_neither_the_others_nor_the_engine_waiting() -> None:
    heard: list[Alert] = []

    async def hang(alert: Alert) -> None:
        await asyncio.Event().wait()

    async def fail(alert: Alert) -> None:
        raise RuntimeError

    with structlog.testing.capture_logs() as lines:
        async with ringing(HookAlerts(hang), HookAlerts(fail), HookAlerts(heard.append)) as alarm:
            for number in range(300):
                alarm.sound(AlertKind.POISON, "it happened", tenant=f"t{number}")
            alarm.sound(AlertKind.SECURITY, "the last")
            await until(lambda: heard and heard[-1].kind is AlertKind.SECURITY)
    assert len(heard) < 100  # three hundred tenants are told as some, and then as many
    assert {line["error"] for line in lines if line["event"] == "alert not sent"} == {"RuntimeError"}


async def test_what_waits_to_be_sent_is_sent_before_the_end_but_not_for_ever() -> None:
    heard: list[Alert] = []

    async def hang(alert: Alert) -> None:
        await asyncio.Event().wait()

    async with ringing(HookAlerts(heard.append), HookAlerts(hang)) as alarm:
        alarm.sound(AlertKind.POISON, "it happened")
        await asyncio.wait_for(alarm.close(), 10)
    assert [alert.kind for alert in heard] == [AlertKind.POISON]


async def test_a_webhook_gets_what_happened_as_json_and_no_more() -> None:
    async with Target(b"HTTP/1.1 204 No Content\r\n\r\n") as target:
        await WebhookAlerts(target.url).send(ALERT)
    head, _, body = target.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /hook?key=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert json.loads(body) == {
        "kind": "poison",
        "level": "error",
        "group": "billing",
        "tenant": "acme",
        "event_type": "a.b",
        "handler": "h",
        "text": "it happened",
        "count": 1,
    }


async def test_a_process_tells_the_address_in_its_settings() -> None:
    consumer = Consumer("billing")
    async with Target(b"HTTP/1.1 200 OK\r\n\r\n") as target:
        environment = {"DATABASE_URL": "postgresql://db/x", "RABBITMQ_URL": "amqp://mq/"}
        environment["OUTBOX_CONSUMER_ALERT_URL"] = target.url
        _tell_webhook(consumer, load(ConsumerSettings, prefix=PREFIX, environment=environment))
        async with ringing(*map(HookAlerts, consumer.alert_hooks)) as alarm:
            alarm.sound(AlertKind.POISON, "it happened")
            await until(lambda: target.requests)


async def test_a_webhook_follows_no_redirect() -> None:
    """Server-side request forgery by redirect: the target is what the configuration says, and nothing else."""
    async with Target(b"HTTP/1.1 200 OK\r\n\r\n") as inside:
        answer = f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {inside.url}\r\n\r\n".encode()
        async with Target(answer) as target:
            with pytest.raises(WebhookRefused, match="want 2xx, got 307"):
                await WebhookAlerts(target.url).send(ALERT)
    assert (len(target.requests), inside.requests) == (1, [])


async def test_a_webhook_that_is_busy_for_a_moment_is_asked_again() -> None:
    async with Target(b"HTTP/1.1 503 Busy\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n") as target:
        await WebhookAlerts(target.url).send(ALERT)
    assert len(target.requests) == 2


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH\r\n", b"x" * 100_000], ids=["hangs", "not http", "endless"])
async def test_a_webhook_has_a_deadline_whatever_the_target_does(answer: bytes) -> None:
    async with Target(answer) as target:
        with pytest.raises((TimeoutError, ConnectionError)):
            await asyncio.wait_for(WebhookAlerts(target.url, deadline_s=0.1).send(ALERT), 10)
    assert len(target.requests) == 3
