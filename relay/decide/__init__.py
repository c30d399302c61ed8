"""Decisions: what is published next, and what being settled means. No clock, no I/O."""
