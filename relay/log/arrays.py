"""Arrays as parameters, in the text form: the driver writes them an element at a time, in several calls for each.

A statement says what they are arrays of, as in ``%s::bigint[]``.
"""

from collections.abc import Sequence


def numbers(values: Sequence[int]) -> str:
    """An array of integers; an enum's would be written by its name."""
    return "{" + str(values)[1:-1] + "}" if values else "{}"


def texts(values: Sequence[str]) -> str:
    """An array of texts, which hold no NUL, as no text of PostgreSQL does."""
    if not values:
        return "{}"
    escaped = "\0".join(values).replace("\\", "\\\\").replace('"', '\\"')
    return '{"' + escaped.replace("\0", '","') + '"}'
