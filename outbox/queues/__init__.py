"""Queues in PostgreSQL, for who runs without RabbitMQ: what the relay and the consumer both do to them.

Queues and bindings are rows, a message is a row, and whoever takes one writes the token of a lease into it. The names
are those of ``outbox.topology``; an exchange is the name that a queue is bound by, and nothing else.
"""

from typing import Final

SCHEMA: Final = "outbox_broker"
