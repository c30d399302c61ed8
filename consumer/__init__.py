"""outbox-consumer: takes deliveries from the lanes, fairly per tenant, and runs handlers once per event."""
