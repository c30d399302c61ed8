"""outbox-relay: carries committed events from the ring log to RabbitMQ, fairly per tenant."""
