"""Handlers of a page, run by the real engine on the page's database."""

import os

from consumer import Consumer
from outbox import EventModel
from outbox_admin.harness import Harness


def handled(consumer: Consumer, event: EventModel, *, times: int = 1, tenant: str = "acme") -> dict[str, int]:
    """How often which outcome *event* had, after it was delivered *times* times."""
    with Harness(consumer, os.environ["DATABASE_URL"]) as harness:
        return dict(harness.deliver(event, tenant=tenant, times=times))
