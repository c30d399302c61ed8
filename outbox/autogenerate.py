"""Keeps an app's own Alembic autogenerate away from our tables: it neither drops them nor adds them.

Without ``include_schemas`` Alembic never looks at our schemas. With it, Alembic 1.18 and later load this
module as a plugin by themselves. Before 1.18, name the filter in ``env.py``:

    context.configure(..., include_schemas=True, include_name=outbox.autogenerate.include_name)
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from alembic.autogenerate.api import AutogenContext
    from alembic.operations.ops import UpgradeOps
    from alembic.runtime.plugins import Plugin
    from alembic.util import PriorityDispatchResult

SCHEMAS: Final = frozenset({"outbox", "consumer", "outbox_broker"})


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:  # noqa: ARG001 (Alembic's signature)
    """Whether autogenerate looks at what has this name: all but our schemas."""
    return type_ != "schema" or name not in SCHEMAS


def setup(plugin: "Plugin") -> None:
    """Alembic calls this as it loads the plugin."""
    from alembic.util import DispatchPriority  # noqa: PLC0415 (apps have no Alembic of ours)

    plugin.add_autogenerate_comparator(_look_away, "schema", "fairpost", priority=DispatchPriority.FIRST)


def _look_away(
    context: "AutogenContext",
    operations: "UpgradeOps",  # noqa: ARG001 (Alembic's signature)
    schemas: set[str | None],
) -> "PriorityDispatchResult":
    """Take our schemas from those that the comparisons after this one read, unless the app has tables there too."""
    from alembic.util import PriorityDispatchResult  # noqa: PLC0415 (apps have no Alembic of ours)

    schemas -= SCHEMAS - {table.schema for table in context.sorted_tables}
    return PriorityDispatchResult.CONTINUE
