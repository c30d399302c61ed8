"""What a handler returned, as text that can be kept. No I/O."""

from outbox.errors import PermanentError
from outbox.strict_json import NotStrict, dumps


def result_text(result: object, *, bytes_max: int) -> str | None:
    """Return *result* as JSON, or None if there is none.

    Raises:
        PermanentError: it is no JSON value, or longer than *bytes_max*: a handler's mistake, which trying again does
            not mend.
    """
    if result is None:
        return None
    try:
        data = dumps(result)
    except NotStrict as error:
        raise PermanentError(f"result: {error}") from None
    if len(data) > bytes_max:
        raise PermanentError(f"result: want at most {bytes_max} bytes of JSON, got {len(data)}")
    return data.decode()
