"""RabbitMQ behind ``relay.ports``: frames, confirms, and the lanes' topology."""
