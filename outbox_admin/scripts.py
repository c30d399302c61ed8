"""The three commands as they are installed: each starts its own, or says which extra is missing."""

import importlib
import os
import sys

from outbox.shell.extras import lacking


def outbox() -> None:
    """Run ``outbox``."""
    _run("outbox_admin.cli", program="outbox")


def relay() -> None:
    """Run ``outbox-relay``."""
    _run("relay.cli", program="outbox-relay")


def consumer() -> None:
    """Run ``outbox-consumer``."""
    _run("consumer.cli", program="outbox-consumer")


def _run(module: str, *, program: str) -> None:
    try:
        main = importlib.import_module(module).main
    except ImportError as error:
        told = lacking(program, error)
        if told is None:
            raise
        print(told, file=sys.stderr)
        raise SystemExit(os.EX_CONFIG) from None
    main()
