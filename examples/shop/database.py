"""The shop's connections: ``DATABASE_URL``, as a role that owns nothing."""

import os

from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

engine = create_async_engine(make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg"))
sessions = async_sessionmaker(engine, class_=AsyncSession)
