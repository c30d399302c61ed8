"""RabbitMQ behind ``consumer.ports``: a connection in a thread of its own, and one to publish."""
