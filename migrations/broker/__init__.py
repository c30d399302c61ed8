"""The ``broker`` chain: queues in PostgreSQL, for who runs without RabbitMQ."""
