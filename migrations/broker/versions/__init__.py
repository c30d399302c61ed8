"""The revisions of the ``broker`` chain, oldest first."""
