"""The revisions of the ``consumer`` chain, oldest first."""
