"""The consumer that an operator names as ``module:attribute``."""

import importlib
import sys
from typing import Final

from consumer.api import Consumer
from outbox.errors import ConfigError, OutboxError

_FORM: Final = "app: want module:attribute, as in shop.billing:consumer"


def load_consumer(name: str, *, directory: str) -> Consumer:
    """Import what *name* names, looking in *directory* first.

    Raises:
        ConfigError: there is no such thing, it is no Consumer, it has no handlers or its upcasters do not fit them, or
            it cannot be imported.
    """
    module_name, mark, attribute = name.partition(":")
    if not (mark and module_name and attribute.isidentifier()):
        raise ConfigError(f"{_FORM}, got {name[:200]!r}")
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        module = importlib.import_module(module_name)
    except OutboxError:
        raise
    except ModuleNotFoundError as error:
        raise ConfigError(f"app: want the module {module_name}, got no module named {error.name}") from error
    except Exception as error:
        raise ConfigError(f"app: want to import {module_name}, got {type(error).__name__}: {error}") from error
    found: object = getattr(module, attribute, None)
    if not isinstance(found, Consumer):
        raise ConfigError(f"app: want a Consumer as {name}, got {'none' if found is None else type(found).__name__}")
    if not found.registry.types:
        # It would bury every event of its group as one of unknown type.
        raise ConfigError(f"app: want a Consumer with a handler, got {name} without any")
    found.registry.check()
    return found
