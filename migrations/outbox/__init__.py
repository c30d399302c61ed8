"""The ``outbox`` chain: what apps write and the relay reads."""
