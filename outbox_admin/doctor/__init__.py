"""``outbox doctor``: what is wrong with a deployment, and what to do about it.

``*_facts`` modules ask, each other module judges facts of one subject without I/O, and ``examination`` runs them all.
"""
