"""Take the customers of a CSV file in, and tell of each: all in one transaction, or nothing.

python import_customers.py acme customers.csv
"""

import csv
import sys
from pathlib import Path

from psycopg.errors import UniqueViolation
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from customers import Customer, CustomerImported, engine, outbox
from outbox import tenant_scope


def import_customers(tenant: str, path: Path) -> tuple[int, int]:
    """How many were new, and how many were known."""
    new = known = 0
    with path.open(newline="") as file, tenant_scope(tenant), Session(engine) as session, session.begin():
        for row in csv.DictReader(file, strict=True):
            try:
                # What is emitted inside is undone with the savepoint, as the row is.
                with session.begin_nested():
                    customer = Customer(email=row["email"], name=row["name"])
                    session.add(customer)
                    session.flush()
                    outbox.emit(session, CustomerImported(customer_id=customer.id, email=customer.email))
                new += 1
            except IntegrityError as error:
                if not isinstance(error.orig, UniqueViolation):  # a row without a name, for one
                    raise
                known += 1
    return new, known


if __name__ == "__main__":
    counts = import_customers(sys.argv[1], Path(sys.argv[2]))
    print("{} new, {} known".format(*counts))
