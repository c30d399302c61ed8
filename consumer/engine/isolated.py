"""A process of the pool, from inside: one call after the other, for whoever started it and until that is gone."""

import signal
from typing import Final, cast

from consumer.api import Consumer
from consumer.decide.crossing import error_to_json, outcome_to_json
from consumer.decide.delivery import Refused, open_envelope, read_body, read_payload
from consumer.engine.calling import arguments_of, invoke, outcome_of
from consumer.outcome import DeadLetter, Outcome
from consumer.registry import Handler
from outbox.event import Event, Tier
from outbox.naming import Lane
from outbox.shell.child import Link, Note
from outbox.wire import Message

#: A call that its parent does not end is ended by the kernel, so long after its deadline: the parent is gone.
_ORPHAN_S: Final = 30.0


async def serve(consumer: Consumer, link: Link) -> None:
    """Handle what *link* asks for, until it is closed."""
    link.send({"ready": True})
    async for note in link.notes():
        try:
            outcome = await _handle(consumer, note)
            answer = outcome_to_json(outcome)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is told, and is no end of this process
            answer = {"error": error_to_json(error)}
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(link, answer)


async def _handle(consumer: Consumer, note: Note) -> Outcome:
    event = _event(consumer, note)
    handler = _handler(consumer, event, str(note.content["handler"]))
    signal.setitimer(signal.ITIMER_REAL, handler.deadline_s + _ORPHAN_S)
    body = read_body(event)
    payload = body if isinstance(body, Refused) else read_payload(handler, event, body)
    if isinstance(payload, Refused):
        return DeadLetter(reason=payload.reason, category=payload.category)
    token = note.content["fencing_token"]
    arguments = arguments_of(
        consumer.group,
        handler,
        event,
        payload,
        attempt=int(str(note.content["attempt"])),
        fencing_token=None if token is None else int(str(token)),
    )
    return outcome_of(await invoke(handler, event, arguments), handler)


def _event(consumer: Consumer, note: Note) -> Event:
    message = Message(**cast("dict[str, str]", note.content["message"]), body=note.data)  # type: ignore[arg-type]
    lane = Lane(group=consumer.group, tier=Tier(int(str(note.content["tier"]))), tenant=str(note.content["tenant"]))
    event = open_envelope(message, lane, payload_bytes_max=len(note.data))
    assert isinstance(event, Event)  # noqa: S101 - the parent has read it before
    return event


def _handler(consumer: Consumer, event: Event, name: str) -> Handler:
    return next(one for one in consumer.registry.handlers_of(event.type) if one.name == name)


def _send(link: Link, answer: dict[str, object]) -> None:
    try:
        link.send(answer)
    except (TypeError, ValueError) as error:  # a result that is no JSON
        link.send({"error": error_to_json(error)})
