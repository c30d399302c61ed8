"""The ring log in PostgreSQL: reading it, owning it, and moving positions."""
