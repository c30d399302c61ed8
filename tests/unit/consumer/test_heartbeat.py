"""What processes say of themselves, read by others of another version."""

import json

from consumer.decide.heartbeat import Heartbeat, OpenBreaker, Running
from outbox.event import Tier

SAID = Heartbeat(
    is_connected=True,
    lanes=3,
    outcomes={"done": 7},
    running=(Running(tenant="acme", tier=Tier.BULK, type="order.placed", events=2),),
    tiers=(Tier.INTERACTIVE, Tier.BULK),
    breakers=(OpenBreaker(type="order.placed", handler="bill", tenant=None),),
)


def test_it_is_read_as_it_was_written() -> None:
    assert Heartbeat.from_json(json.loads(json.dumps(SAID.to_json()))) == SAID


def test_of_older_code_what_it_did_not_say_is_left_at_its_default() -> None:
    assert Heartbeat.from_json({"lanes": 3}) == Heartbeat(lanes=3)


def test_of_newer_code_what_is_not_known_here_is_left_out() -> None:
    newer: dict[str, object] = {
        **SAID.to_json(),
        "mood": "good",
        "tiers": [int(Tier.INTERACTIVE), 9, int(Tier.BULK)],
        "running": [["acme", int(Tier.BULK), "order.placed", 2, "more"], ["acme", 9, "order.placed", 1]],
        "breakers": [["order.placed", "bill", None, "more"]],
    }
    assert Heartbeat.from_json(newer) == SAID
