"""The ``consumer`` chain: what a group has done, and what waits in its hands."""
