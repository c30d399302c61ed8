"""The broker and exchange ports on queues in PostgreSQL."""
