"""The message that tells a group of one lane."""

import json
from datetime import UTC
from typing import Final

from outbox.event import JSON, new_event_id
from outbox.wire import Message
from relay.ports import Announcement

LANE_TYPE: Final = "fairpost.lane"


def announcement_message(announcement: Announcement, *, is_gone: bool = False) -> Message:
    """JSON that names the lane by its parts: no queue name gives a long tenant id back.

    Args:
        is_gone: the lane is about to be deleted; whoever consumes from it stops once nothing of it is in hand.
    """
    lane = announcement.lane
    content: dict[str, str | bool] = {
        "group": lane.group,
        "tier": lane.tier.label,
        "tenant": lane.tenant,
        "queue": lane.queue,
        "group_started_at": announcement.group_started_at.astimezone(UTC).isoformat(),
    }
    if is_gone:
        content["is_gone"] = True
    return Message(
        message_id=str(new_event_id()),
        type=LANE_TYPE,
        app_id="outbox-relay",
        content_type=JSON,
        headers={},
        body=json.dumps(content).encode(),
    )
