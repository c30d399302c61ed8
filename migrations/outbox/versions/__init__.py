"""The revisions of the ``outbox`` chain, oldest first."""
