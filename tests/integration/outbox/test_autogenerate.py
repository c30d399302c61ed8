"""An app's own ``alembic revision --autogenerate``, with every schema included, on a database that has our tables."""

from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from outbox.autogenerate import include_name
from tests.integration.outbox.shop import Base


def proposed(engine: sa.Engine, metadata: sa.MetaData, **options: Any) -> list[str]:
    """The kinds of what autogenerate would write, with the table's name."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_schemas": True, **options})
        changes = compare_metadata(context, metadata)
    return [f"{change[0]} {change[1].name}" for change in changes]


def test_autogenerate_neither_drops_nor_adds_our_tables(engine: sa.Engine) -> None:
    assert proposed(engine, Base.metadata) == []


def test_autogenerate_still_sees_the_apps_own_changes(own_engine: sa.Engine) -> None:
    grown = sa.MetaData()
    sa.Table("invoices", grown, sa.Column("id", sa.Integer, primary_key=True), schema="billing")
    with own_engine.begin() as connection:
        connection.execute(sa.text("create schema billing; create table billing.old (id int)"))

    assert sorted(proposed(own_engine, grown)) == [
        "add_table invoices",
        "remove_table old",
        "remove_table orders",
        "remove_table wallets",
    ]


def test_a_filter_does_the_same_for_an_older_alembic(engine: sa.Engine) -> None:
    without_plugin = ["alembic.autogenerate.*", "~alembic.autogenerate.fairpost"]
    options = {"autogenerate_plugins": without_plugin, "include_name": include_name}

    assert proposed(engine, Base.metadata, **options) == []


@pytest.mark.filterwarnings("ignore:Did not recognize type")
def test_without_either_autogenerate_would_drop_our_tables(engine: sa.Engine) -> None:
    without_plugin = ["alembic.autogenerate.*", "~alembic.autogenerate.fairpost"]

    assert "remove_table event" in proposed(engine, Base.metadata, autogenerate_plugins=without_plugin)
