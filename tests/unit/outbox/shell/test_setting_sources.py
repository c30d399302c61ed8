"""Where settings are written, which place wins, and what is told of each."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from dotenv import load_dotenv
from psycopg.conninfo import conninfo_to_dict
from pydantic import BaseModel, Field

from outbox.errors import ConfigError
from outbox.shell.setting_sources import collect
from outbox.shell.setting_types import BrokerUrl, DatabaseUrl, LogLevel
from outbox.shell.settings import Reading, read

PREFIX = "OUTBOX_RELAY_"
URL = "postgresql://app:s3cret@db/app"


class _Settings(BaseModel):
    database_url: DatabaseUrl
    rabbitmq_url: BrokerUrl | None = None
    log_level: LogLevel = Field(default="info", json_schema_extra={"option": True})
    chunk: int = Field(default=200, ge=1, le=10_000)


Read = Callable[..., Reading[_Settings]]


@pytest.fixture
def reading(tmp_path: Path) -> Read:
    """Read what the two files say, beside an environment and options."""

    def of(dotenv: str = "", toml: str = "", *, level: str | None = None, **environment: str) -> Reading[_Settings]:
        for name, text in ((".env", dotenv), ("outbox.toml", toml)):
            if text:
                (tmp_path / name).write_text(text)
        sources = collect(environment, directory=tmp_path, options={"--log-level": level})
        return read(_Settings, prefix=PREFIX, sources=sources)

    return of


def _origin(found: Reading[_Settings], field: str) -> tuple[object, str]:
    row = next(row for row in found.rows if row.setting.field == field)
    return row.value, row.origin


def test_the_first_source_that_has_a_setting_wins_whichever_of_its_names_it_has(reading: Read) -> None:
    dotenv, toml = "# app's own\nOUTBOX_RELAY_LOG_LEVEL=error\n", '[relay]\nlog_level = "warning"\n'
    environment = {"DATABASE_URL": URL, "OUTBOX_LOG_LEVEL": "info"}
    origins = [
        reading(dotenv, toml, level="debug", **environment),
        reading(dotenv, toml, **environment),
        reading(dotenv, toml, DATABASE_URL=URL),
        reading("APP=1", toml, DATABASE_URL=URL),
        reading("APP=1", "[consumer]\n", DATABASE_URL=URL),
    ]
    assert [_origin(found, "log_level") for found in origins] == [
        ("debug", "option --log-level"),
        ("info", "environment variable OUTBOX_LOG_LEVEL"),
        ("error", ".env line 2, OUTBOX_RELAY_LOG_LEVEL"),
        ("warning", "outbox.toml [relay] log_level"),
        ("info", "default"),
    ]


def test_a_processs_own_table_goes_before_the_one_for_all(reading: Read) -> None:
    both = '[outbox]\nlog_level = "error"\n[relay]\nlog_level = "debug"\n'
    assert _origin(reading(toml=both, DATABASE_URL=URL), "log_level") == ("debug", "outbox.toml [relay] log_level")
    shared = '[outbox]\nlog_level = "error"\n'
    assert _origin(reading(toml=shared, DATABASE_URL=URL), "log_level") == ("error", "outbox.toml [outbox] log_level")


def test_everything_wrong_in_all_sources_is_told_at_once_with_its_file_and_key(reading: Read) -> None:
    found = reading(
        "SECRET_KEY=x\nOUTBOX_RELAY_CHUNKS=5\nOUTBOX_CONSUMER_SLOTS=0\nexport OUTBOX_LOG_LEVEL=loud\n",
        "[relay]\nchunk = 0\nchunky = 1\n[outbox]\nchunk = 5\n[rely]\n",
        DATABASE_URL="mysql://app:s3cret@db",
        OUTBOX_LOG_FORM="json",
    )
    assert found.problems == (
        "DATABASE_URL: want postgresql://user:password@host:port/database, got 'mysql://app:***@db'",
        "OUTBOX_LOG_FORM: no such setting, did you mean OUTBOX_LOG_FORMAT?",
        "OUTBOX_LOG_LEVEL (.env line 4): want debug, info, warning or error, got 'loud'",
        "OUTBOX_RELAY_CHUNKS (.env line 2): no such setting, did you mean OUTBOX_RELAY_CHUNK?",
        "[outbox] chunk (outbox.toml): no such setting, did you mean [relay] chunk?",
        "[relay] chunk (outbox.toml): want an integer, 1..10000, got 0",
        "[relay] chunky (outbox.toml): no such setting, did you mean [relay] chunk?",
        "outbox.toml: want the sections [outbox], [relay], [consumer], got 'rely'",
    )
    with pytest.raises(ConfigError) as refused:
        found.required()
    assert str(refused.value).split("; ") == list(found.problems)


def test_who_needs_some_settings_alone_does_not_mind_what_is_wrong_with_others() -> None:
    class Address(BaseModel):
        database_url: DatabaseUrl

    sources = collect({"DATABASE_URL": URL, "OUTBOX_RELAY_CHUNK": "0", "OUTBOX_RELAY_CHUNKS": "1"})
    assert read(Address, prefix=PREFIX, sources=sources, is_partial=True).problems == ()
    assert read(Address, prefix=PREFIX, sources=sources).problems != ()


@pytest.mark.parametrize(
    ("toml", "told"),
    [
        (
            "[relay\n",
            "want TOML, got outbox.toml: Expected ']' at the end of a table declaration (at line 1, column 7)",
        ),
        ("relay = 5\n", "outbox.toml: want the sections [outbox], [relay], [consumer], got 'relay'"),
        ("chunk = 5\n", "outbox.toml: want the sections [outbox], [relay], [consumer], got 'chunk'"),
    ],
)
def test_a_file_that_is_not_one_is_refused(reading: Read, toml: str, told: str) -> None:
    assert reading(toml=toml, DATABASE_URL=URL).problems == (told,)


def test_a_file_that_is_named_and_missing_is_refused_and_one_that_is_not_named_is_not(reading: Read) -> None:
    assert reading(DATABASE_URL=URL).problems == ()
    named = reading(DATABASE_URL=URL, OUTBOX_ENV_FILE="no.env", OUTBOX_CONFIG="no.toml")
    assert named.problems == (
        "OUTBOX_CONFIG: want a file that can be read, got no.toml: No such file or directory",
        "OUTBOX_ENV_FILE: want a file that can be read, got no.env: No such file or directory",
    )


def test_a_working_directory_that_cannot_be_looked_into_has_no_files() -> None:
    # The name is too long for any file system, which is refused to root too, as the home of another is not.
    assert not collect({}, directory=Path("d" * 4_000)).problems


def test_a_virtual_environment_named_as_the_file_is_not_read_and_a_byte_order_mark_is_no_part_of_a_name(
    reading: Read, tmp_path: Path
) -> None:
    (tmp_path / ".env").mkdir()
    assert reading(toml="\ufeff[relay]\nchunk = 7\n", DATABASE_URL=URL).required().chunk == 7
    (tmp_path / ".env").rmdir()
    assert reading("\ufeffOUTBOX_RELAY_CHUNK=8\n", DATABASE_URL=URL).required().chunk == 8


def test_the_env_file_may_say_which_toml_file_is_read(reading: Read, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("[relay]\nchunk = 7\n")
    found = reading("OUTBOX_CONFIG=other.toml\n", "[relay]\nchunk = 8\n", DATABASE_URL=URL)
    assert _origin(found, "chunk") == (7, "other.toml [relay] chunk")


def test_a_line_of_another_programs_is_its_own_business_and_a_broken_one_of_ours_is_told(reading: Read) -> None:
    found = reading("not a line 'of ours\nOUTBOX_RELAY_CHUNK='5\n", DATABASE_URL=URL)
    assert found.problems == (".env line 2: want NAME=value, got a line that cannot be read",)


def test_values_in_an_env_file_are_read_as_apps_read_them(reading: Read) -> None:
    found = reading('HOST=db\nDATABASE_URL="postgresql://app:p#w@${HOST}/app" # the app\'s\n').required()
    assert found.database_url.get_secret_value() == "postgresql://app:p#w@db/app"


def test_what_an_env_file_names_is_taken_from_the_environment_first_as_load_dotenv_does(
    reading: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "DB_HOST=localhost\nDATABASE_URL=postgresql://app:${DB_PASSWORD}@${DB_HOST}/${DB_NAME:-app}\n"
    monkeypatch.setattr(os, "environ", environ := {"DB_HOST": "db", "DB_PASSWORD": "s3cret"})
    (tmp_path / "app.env").write_text(text)
    found = reading(text, **environ).required()
    load_dotenv(tmp_path / "app.env")
    assert found.database_url.get_secret_value() == environ["DATABASE_URL"] == "postgresql://app:s3cret@db/app"
    assert reading(text).required().database_url.get_secret_value() == "postgresql://app:@localhost/app"


@pytest.mark.parametrize("name", ["RABBITMQ_URL", "AMQP_URL", "CLOUDAMQP_URL"])
def test_the_broker_is_found_by_the_names_that_platforms_give_it(reading: Read, name: str) -> None:
    url = reading(DATABASE_URL=URL, **{name: "amqp://mq/"}).required().rabbitmq_url
    assert url is not None
    assert url.get_secret_value() == "amqp://mq/"


def test_libpqs_variables_name_the_database_where_no_address_is_given(reading: Read) -> None:
    environment = {
        "PGHOST": "db",
        "PGPASSWORD": "s3cret",
        "PGSSLMODE": "require",
        "PGAPPNAME": "psql",
        "PGADMIN_PORT": "80",
    }
    found = reading("PGDATABASE=shop\nPGHOST=elsewhere\n", **environment)
    said = conninfo_to_dict(found.required().database_url.get_secret_value())
    assert said == {"host": "db", "dbname": "shop", "password": "s3cret", "sslmode": "require"}
    assert _origin(found, "database_url")[1] == "PGDATABASE, PGHOST, PGPASSWORD, PGSSLMODE"
    assert "s3cret" not in found.lines[0]
    assert _origin(reading(DATABASE_URL=URL, **environment), "database_url") == (
        URL,
        "environment variable DATABASE_URL",
    )


def test_below_a_service_file_libpq_reads_its_variables_itself(reading: Read) -> None:
    found = reading(PGSERVICE="shop", PGPORT="5433").required()
    assert conninfo_to_dict(found.database_url.get_secret_value()) == {"service": "shop"}


def test_a_password_alone_names_no_database(reading: Read) -> None:
    assert reading(PGUSER="app", PGPASSWORD="s3cret").missing == ("database_url",)
