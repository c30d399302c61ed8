"""Greets whoever was imported, once.

outbox-consumer run welcome:consumer
"""

from sqlalchemy.orm import Session

from consumer import Consumer
from customers import CustomerImported, Greeting

consumer = Consumer("default")


@consumer.on(CustomerImported)
def greet(event: CustomerImported, session: Session) -> None:
    """Write the greeting, in the transaction of the ledger's row."""
    session.add(Greeting(customer_id=event.customer_id, email=event.email))
