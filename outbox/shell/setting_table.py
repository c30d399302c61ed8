"""The table of settings: one row per field of a process's model, with all that a reader or a page asks of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from pydantic import BaseModel

from outbox.shell.secrets import masked, shown_url
from outbox.shell.setting_sources import COMMON_PREFIX, CONFIG_FILE, ENV_FILE, LIBPQ, section_of

SHARED: Final = (
    "database_url",
    "broker",
    "rabbitmq_url",
    "broker_database_url",
    "log_level",
    "log_format",
    "queue_kind",
)
"""Settings that may be given for all processes at once."""

READ_ELSEWHERE: Final = {
    ENV_FILE: "the file with variables that is read instead of .env in the working directory; /dev/null reads none",
    CONFIG_FILE: "the file that is read instead of outbox.toml in the working directory; .env may name it too",
    "OUTBOX_TEST_DATABASE_URL": "the server on which the pytest plugin makes databases",
}
"""Variables of ours that are no settings, and what they say."""

# By the names that platforms and their add-ons give them.
_PLATFORM_NAMES: Final = {
    "database_url": ("DATABASE_URL",),
    "rabbitmq_url": ("RABBITMQ_URL", "AMQP_URL", "CLOUDAMQP_URL"),
}
_KINDS: Final = {"integer": "an integer", "number": "a number", "boolean": "true or false", "string": "text"}

_Schema: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row. *choices* are all values there are, *allowed* is a range or length; both may be empty."""

    field: str
    prefix: str
    kind: str
    choices: tuple[str, ...]
    allowed: str
    form: str
    """What a value looks like, where a kind does not say it."""
    default: object
    is_required: bool
    is_secret: bool
    has_option: bool
    description: str

    @property
    def section(self) -> str:
        """The table of the TOML file that is this process's own."""
        return section_of(self.prefix)

    @property
    def variable(self) -> str:
        """The name that is most its own."""
        return self.prefix + self.field.upper()

    @property
    def names(self) -> tuple[str, ...]:
        """What it is called in each source, where one has several names the one that wins first."""
        is_shared, upper = self.field in SHARED, self.field.upper()
        return (
            *([f"--{self.field.replace('_', '-')}"] if self.has_option else []),
            *dict.fromkeys([self.variable, *([COMMON_PREFIX + upper] if is_shared else [])]),
            *_PLATFORM_NAMES.get(self.field, ()),
            *dict.fromkeys([f"[{self.section}] {self.field}", *([f"[outbox] {self.field}"] if is_shared else [])]),
            *([LIBPQ] if self.field == "database_url" else []),
        )

    @property
    def variables(self) -> tuple[str, ...]:
        """Those of its names that are environment variables."""
        return tuple(name for name in self.names if name.isupper() and name != LIBPQ)

    @property
    def plain_names(self) -> tuple[str, ...]:
        """Variables to set, the plainest first: a platform's, then that for all processes, then this one's own."""
        ours = [name for name in self.variables if name.startswith(COMMON_PREFIX)]
        platform = [name for name in self.variables if name not in ours]
        return (*platform[:1], *reversed(ours))

    @property
    def wanted(self) -> str:
        """What a value must be, in words."""
        if self.choices:
            return " or ".join(filter(None, [", ".join(self.choices[:-1]), self.choices[-1]]))
        return self.form or ", ".join(filter(None, [self.kind, self.allowed]))

    def shown(self, value: object) -> str:
        """*value* as it may be printed: no secret in it."""
        if value is None:
            return "none"
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, list):
            return ",".join(map(self.shown, value))
        text = f"{value:g}" if isinstance(value, float) else str(value)
        return shown_url(text) if self.is_secret else masked(text)


def settings_of(model: type[BaseModel], *, prefix: str) -> list[Setting]:
    """The settings of *model*, in its order."""
    properties = model.model_json_schema()["properties"]
    return [
        _setting(name, properties[name], prefix=prefix, default=info.get_default(), is_required=info.is_required())
        for name, info in model.model_fields.items()
    ]


def _setting(field: str, schema: _Schema, *, prefix: str, default: object, is_required: bool) -> Setting:
    # An optional field's own type stands first in its union with null.
    union = schema.get("anyOf")
    inner: _Schema = {**(union[0] if isinstance(union, list) else {}), **schema}
    choices, examples = inner.get("enum"), inner.get("examples")
    return Setting(
        field=field,
        prefix=prefix,
        kind=_KINDS.get(str(inner.get("type")), "text"),
        choices=tuple(map(str, choices)) if isinstance(choices, list) else (),
        allowed=_allowed(inner),
        form=str(examples[0]) if isinstance(examples, list) else "",
        default=None if is_required else default,
        is_required=is_required,
        is_secret=inner.get("format") == "password",
        has_option=inner.get("option") is True,
        description=str(schema.get("description", "")),
    )


def _allowed(schema: _Schema) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    above, below, length = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum"), schema.get("maxLength")
    if least is not None and most is not None:
        return f"{least}..{most}"
    bounds = (
        ("{} or more", least),
        ("more than {}", above),
        ("{} or less", most),
        ("less than {}", below),
        ("at most {} characters", length),
    )
    return " and ".join(words.format(bound) for words, bound in bounds if bound is not None)
