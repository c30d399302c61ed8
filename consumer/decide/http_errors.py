"""What the errors of HTTP clients mean: httpx, requests, aiohttp, urllib3, botocore and the standard library's.

Known by shape and by name, so none of them is imported: a response with a status, or a class of one of those packages.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import SimpleNamespace
from typing import Final

from consumer.decide.causes import fits, read
from consumer.decide.failure import PERMANENT, TRANSIENT, UNKNOWN, Failure, FailureCategory
from consumer.outcome import DeadCategory

#: What a status means; of each pair the first that fits, a dot being any digit.
STATUSES: Final = (
    ("429", FailureCategory.THROTTLED),
    ("503", FailureCategory.THROTTLED),
    ("408", FailureCategory.TRANSIENT),
    ("425", FailureCategory.TRANSIENT),
    ("5..", FailureCategory.TRANSIENT),
    # Most often our own credentials: it is not the event's fault, and the same event succeeds once they are mended.
    ("401", FailureCategory.UNKNOWN),
    ("403", FailureCategory.UNKNOWN),
    ("407", FailureCategory.UNKNOWN),
    ("4..", FailureCategory.PERMANENT),
)
# Beside these a Retry-After says that it is a limit after all (RFC 9110 names 413, GitHub answers 403).
_LIMITS_IN_DISGUISE: Final = frozenset({403, 413})

#: By package and class, the most derived class first.
CLASSES: Final[Mapping[tuple[str, str], Failure]] = {
    **dict.fromkeys(
        [
            ("httpx", "TransportError"),
            ("httpcore", "NetworkError"),
            ("httpcore", "TimeoutException"),
            ("httpcore", "ConnectionNotAvailable"),
            ("httpcore", "RemoteProtocolError"),
            ("httpcore", "ProxyError"),
            ("aiohttp", "ClientConnectionError"),
            ("aiohttp", "ClientPayloadError"),
            ("urllib3", "ProtocolError"),
            ("urllib3", "TimeoutError"),
            ("urllib3", "NewConnectionError"),
            ("urllib3", "MaxRetryError"),
            ("urllib3", "ProxyError"),
            ("urllib3", "SSLError"),
            ("botocore", "HTTPClientError"),
            ("botocore", "ConnectionError"),
        ],
        TRANSIENT,
    ),
    **dict.fromkeys(
        [
            ("httpx", "UnsupportedProtocol"),
            ("httpx", "LocalProtocolError"),
            ("httpx", "InvalidURL"),
            ("httpx", "TooManyRedirects"),
            ("httpcore", "UnsupportedProtocol"),
            ("httpcore", "LocalProtocolError"),
            ("requests", "InvalidURL"),
            ("requests", "MissingSchema"),
            ("requests", "InvalidSchema"),
            ("requests", "InvalidHeader"),
            ("requests", "TooManyRedirects"),
            ("aiohttp", "InvalidURL"),
            ("aiohttp", "TooManyRedirects"),
            ("urllib3", "LocationValueError"),
            ("botocore", "ParamValidationError"),
        ],
        PERMANENT,
    ),
}

# As botocore's own retry handler knows them: what a service answers with 400 and means "slow down" by.
_THROTTLING_CODES: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "LimitExceededException",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "TransactionInProgressException",
    }
)
_TIMEOUT_CODES: Final = frozenset({"RequestTimeout", "RequestTimeoutException"})
_CREDENTIAL_CODES: Final = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "RequestTimeTooSkewed"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back. *code* is the service's own word for it, where there is one beside the status."""

    status: int
    headers: object
    code: str | None = None


def answer_of(error: BaseException) -> Answer | None:
    """Return the answer that *error* itself tells of, if it does."""
    response = read(error, "response")
    if isinstance(response, Mapping):
        return _of_botocore(response)
    if response is not None:  # not its truth: a response of requests is false where its status is an error
        return _answer(read(response, "status_code") or read(response, "status"), read(response, "headers"))
    if read(error, "request_info") is not None:  # aiohttp
        return _answer(read(error, "status"), read(error, "headers"))
    if type(error).__name__ == "HTTPError":  # urllib
        return _answer(read(error, "code"), read(error, "headers"))
    return None


def response_like(status: object, headers: object, *, code: object) -> object:
    """Return what an error may have as its ``response``, so that ``answer_of`` finds *status*, *headers* and *code*."""
    if code is None:
        return SimpleNamespace(status_code=status, headers=headers)
    return {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers}}


def by_answer(answer: Answer, *, now: datetime | None) -> Failure | None:
    """Say what *answer* means. *now* is for a ``Retry-After`` that is a date beside no ``Date``."""
    if answer.code in _CREDENTIAL_CODES:
        return UNKNOWN
    after_s = retry_after_s(answer.headers, now=now)
    is_throttled = answer.code in _THROTTLING_CODES or (after_s is not None and answer.status in _LIMITS_IN_DISGUISE)
    is_timeout = answer.code in _TIMEOUT_CODES
    category = (
        FailureCategory.THROTTLED
        if is_throttled
        else FailureCategory.TRANSIENT
        if is_timeout
        else next((category for pattern, category in STATUSES if fits(str(answer.status), pattern)), None)
    )
    if category is None:
        return None
    is_permanent = category is FailureCategory.PERMANENT
    return Failure(
        category=category,
        dead_category=DeadCategory.PERMANENT if is_permanent else DeadCategory.EXHAUSTED,
        not_before_s=0.0 if after_s is None or is_permanent else after_s,
    )


def by_class(error: BaseException) -> Failure | None:
    """Say what *error* means as one of a client's own classes, for what never got an answer."""
    for kind in type(error).__mro__:
        if (failure := CLASSES.get((kind.__module__.partition(".")[0], kind.__name__))) is not None:
            return failure
    return None


def retry_after_s(headers: object, *, now: datetime | None) -> float | None:
    """Return how long the header ``Retry-After`` asks to wait: seconds, or until a date (RFC 9110, 10.2.3).

    A date is counted from the answer's own ``Date``, so that clocks need not agree, else from *now*. One that is
    past, or a number below 0, is no wait at all; what cannot be read is no answer.
    """
    value = _header(headers, "Retry-After")
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value[:10])
    until = _date(value)
    since = _date(_header(headers, "Date") or "") or now
    if until is None or since is None:
        return None
    return max(0.0, (until - since).total_seconds())


def _of_botocore(response: Mapping[object, object]) -> Answer | None:
    error, metadata = response.get("Error"), response.get("ResponseMetadata")
    if not (isinstance(error, Mapping) and isinstance(metadata, Mapping)):
        return None
    code = error.get("Code")
    return _answer(
        metadata.get("HTTPStatusCode"), metadata.get("HTTPHeaders"), code=code if isinstance(code, str) else None
    )


def _answer(status: object, headers: object, *, code: str | None = None) -> Answer | None:
    if not isinstance(status, int) or not 100 <= status <= 599:  # noqa: PLR2004 - what HTTP knows
        return None
    return Answer(status=int(status), headers=headers, code=code)


def _header(headers: object, name: str) -> str | None:
    get = read(headers, "get")
    if not callable(get):
        return None
    for spelled in (name, name.lower()):  # botocore's are a plain dict of small letters
        value: object = get(spelled)
        if isinstance(value, str):
            return value.strip()
    return None


def _date(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # an absurd offset or year
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
