"""The shop's own migrations, beside Fairpost's: run as the tables' owner, ``OWNER_DATABASE_URL``."""

import os

from alembic import context
from sqlalchemy import create_engine, make_url

from tables import Base

engine = create_engine(make_url(os.environ["OWNER_DATABASE_URL"]).set(drivername="postgresql+psycopg"))
with engine.begin() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata)
    context.run_migrations()
engine.dispose()
