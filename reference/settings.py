"""``settings.md``: every setting, from the models that the processes read."""

from typing import Final

from outbox.shell.setting_table import SHARED, Setting, settings_of
from outbox_admin.configuration import PROCESSES, Process
from reference.markdown import code, page, table

_SOURCES: Final = """
Settings are read once, when a process starts. Everything wrong with them is told in one message, each with the file and
the name it stands under, and the process ends with 78. A name that starts with `OUTBOX_`, or a key of `outbox.toml`,
that nothing reads is refused; whatever else is in a `.env` file is left to the app.

`outbox config show` prints what is in force and where each value is from, passwords masked; `outbox config check` all
that is wrong; `outbox config explain OUTBOX_RELAY_LEASE_S` where one setting is looked for, and found. They ask no
server: `outbox-relay check` and `outbox-consumer check app:consumer` do.

## Where they are read

The first of these that has a setting wins:

1. an option of the command, such as `--broker`;
2. the environment;
3. the file `.env` in the working directory, or the one that `OUTBOX_ENV_FILE` names;
4. the file `outbox.toml` in the working directory, or the one that `OUTBOX_CONFIG` names;
5. for the database's address alone: libpq's own variables, where `PGHOST`, `PGSERVICE` or `PGDATABASE` is set, in the
   environment or in `.env`;
6. the default.

In one source the more special name wins: `OUTBOX_RELAY_LOG_LEVEL` before `OUTBOX_LOG_LEVEL`, `[relay]` before
`[outbox]`. An empty value counts as not given. `/dev/null` as a file's name reads none. `${NAME}` in a `.env` file is
filled in as python-dotenv's `load_dotenv` does it for the app: from the environment, else from the lines above.
""".strip()

_TOML: Final = """
A setting named `OUTBOX_RELAY_LEASE_S` is the key `lease_s` under `[relay]`:

```toml
[outbox]
broker = "rabbitmq"
log_level = "info"

[relay]
lease_s = 30

[consumer]
slots = 20
tiers = ["interactive", "standard"]
```
""".strip()

_ADDRESSES: Final = """
`DATABASE_URL` is read where none of our own names gives the database, as an app has it: the name of a driver, as in
`postgresql+asyncpg://`, is passed over. For RabbitMQ it is `RABBITMQ_URL`, `AMQP_URL` and `CLOUDAMQP_URL`, in this
order, which platforms and their add-ons set. Keep addresses, which hold passwords, out of a file that others read.

libpq's variables mean what they mean to `psql`: `PGHOST`, `PGPORT`, `PGUSER`, `PGPASSWORD`, `PGDATABASE`, `PGSERVICE`,
`PGSSLMODE` and the others. They name the database of all processes; a URL in any source goes before them.
""".strip()


def render() -> str:
    """The page."""
    shared = ", ".join(code(f"OUTBOX_{field.upper()}") for field in SHARED)
    blocks = [
        _SOURCES,
        _TOML,
        f"These may be given for all processes at once: {shared}.",
        _ADDRESSES,
    ]
    for process in PROCESSES:
        blocks += [f"## {process.command}", table(("variable", "default", "value", "what it is"), _rows(process))]
    return page("Settings", *blocks)


def _rows(process: Process) -> list[tuple[str, ...]]:
    return [
        (
            code(setting.variable) + (f", {code(setting.names[0])}" if setting.has_option else ""),
            _default(setting),
            _value(setting),
            setting.description,
        )
        for setting in settings_of(process.model, prefix=process.prefix)
    ]


def _default(setting: Setting) -> str:
    if setting.is_required:
        return "required"
    return "none" if setting.default is None else code(setting.shown(setting.default))


def _value(setting: Setting) -> str:
    if setting.choices:
        return ", ".join(map(code, setting.choices))
    return code(setting.form) if "://" in setting.form else setting.wanted
