"""Libraries that keep quiet while a command of ours says itself, in one sentence, what has failed."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def libraries_hushed() -> Iterator[None]:
    """Nothing is logged meanwhile: what libraries log of a failed connection says less than our one sentence."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
