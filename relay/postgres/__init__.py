"""The relay's publisher and topology on queues in PostgreSQL."""
