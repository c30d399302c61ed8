"""Decisions about deliveries, turns, order and failures. No clock, no I/O."""
