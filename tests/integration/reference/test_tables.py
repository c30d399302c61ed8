"""The page of tables is what a fresh migration makes."""

from pathlib import Path

from reference.tables import of_database

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "tables.md"


def test_the_page_of_tables_is_what_a_fresh_migration_makes(migrated_database: str) -> None:
    assert PAGE.read_text() == of_database(migrated_database), "want the page of this code: run 'python -m reference'"
