"""Fairpost for apps: commit business rows and outbox events in one SQLAlchemy transaction.

    from outbox import EventModel, Outbox
"""
