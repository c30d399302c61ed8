"""What the errors of HTTP clients mean: the real libraries', and the shapes of those that are not installed here."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import format_datetime
from typing import Any
from urllib.error import HTTPError

import aiohttp
import httpx
import pytest
import requests
import urllib3.exceptions
from hypothesis import example, given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from consumer.decide.classify import classify
from consumer.decide.crossing import error_from_json, error_to_json
from consumer.decide.failure import Failure, FailureCategory
from consumer.outcome import DeadCategory

NOW = datetime(2026, 11, 29, 22, 0, tzinfo=UTC)
Client = Callable[[int, Mapping[str, str]], BaseException]


def of_httpx(status: int, headers: Mapping[str, str]) -> BaseException:
    response = httpx.Response(status, headers=headers, request=httpx.Request("GET", "http://host/"))
    with pytest.raises(httpx.HTTPStatusError) as caught:
        response.raise_for_status()
    return caught.value


def of_requests(status: int, headers: Mapping[str, str]) -> BaseException:
    response = requests.Response()
    response.status_code = status
    response.headers.update(headers)
    with pytest.raises(requests.HTTPError) as caught:
        response.raise_for_status()
    return caught.value


def of_aiohttp(status: int, headers: Mapping[str, str]) -> BaseException:
    url = URL("http://host/")
    info = aiohttp.RequestInfo(url, "GET", CIMultiDictProxy(CIMultiDict()), url)
    return aiohttp.ClientResponseError(info, (), status=status, headers=CIMultiDict(headers))


def of_urllib(status: int, headers: Mapping[str, str]) -> BaseException:
    fields = Message()
    for name, value in headers.items():
        fields[name] = value
    error = HTTPError("http://host/", status, "no", fields, None)
    error.close()  # Python 3.14 warns of one whose answer nobody has closed
    return error


class ClientError(Exception):
    """As botocore.exceptions.ClientError is."""

    def __init__(self, response: dict[str, Any]) -> None:
        super().__init__("An error occurred")
        self.response = response


def of_botocore(status: int, headers: Mapping[str, str], *, code: str = "Some") -> ClientError:
    fields = {name.lower(): value for name, value in headers.items()}
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": fields}})


every_client = pytest.mark.parametrize("client", [of_httpx, of_requests, of_aiohttp, of_urllib, of_botocore])


@every_client
@pytest.mark.parametrize(
    ("status", "category"),
    [
        (400, FailureCategory.PERMANENT),
        (401, FailureCategory.UNKNOWN),
        (403, FailureCategory.UNKNOWN),
        (404, FailureCategory.PERMANENT),
        (408, FailureCategory.TRANSIENT),
        (409, FailureCategory.PERMANENT),
        (410, FailureCategory.PERMANENT),
        (422, FailureCategory.PERMANENT),
        (425, FailureCategory.TRANSIENT),
        (429, FailureCategory.THROTTLED),
        (500, FailureCategory.TRANSIENT),
        (502, FailureCategory.TRANSIENT),
        (503, FailureCategory.THROTTLED),
        (504, FailureCategory.TRANSIENT),
    ],
)
def test_a_status_means_the_same_whichever_client_tells_of_it(
    client: Client, status: int, category: FailureCategory
) -> None:
    failure = classify(client(status, {}))

    assert failure.category is category
    is_permanent = category is FailureCategory.PERMANENT
    assert failure.dead_category is (DeadCategory.PERMANENT if is_permanent else DeadCategory.EXHAUSTED)


@every_client
@pytest.mark.parametrize("status", [429, 503])
def test_a_wait_that_is_asked_for_in_seconds_is_kept(client: Client, status: int) -> None:
    failure = classify(client(status, {"Retry-After": "120"}))

    assert failure == Failure(category=FailureCategory.THROTTLED, not_before_s=120)


@every_client
def test_a_wait_until_a_date_is_counted_from_the_answers_own_date(client: Client) -> None:
    theirs = NOW + timedelta(hours=3)  # their clock is wrong, which changes nothing
    headers = {"Retry-After": format_datetime(theirs + timedelta(seconds=90), usegmt=True)}
    headers |= {"Date": format_datetime(theirs, usegmt=True)}

    assert classify(client(503, headers), now=NOW).not_before_s == 90


@every_client
def test_a_wait_until_a_date_is_counted_from_now_where_the_answer_has_no_date(client: Client) -> None:
    later = {"Retry-After": format_datetime(NOW + timedelta(seconds=90), usegmt=True)}
    past = {"Retry-After": format_datetime(NOW - timedelta(days=1), usegmt=True)}

    assert classify(client(429, later), now=NOW).not_before_s == 90
    assert classify(client(429, past), now=NOW).not_before_s == 0


def test_a_server_error_that_says_when_to_come_back_is_charged_and_waited_for() -> None:
    failure = classify(of_httpx(500, {"Retry-After": "30"}))

    assert failure == Failure(category=FailureCategory.TRANSIENT, not_before_s=30)


def test_a_refusal_that_says_when_to_come_back_is_a_limit_in_disguise() -> None:
    assert classify(of_httpx(403, {"Retry-After": "30"})).category is FailureCategory.THROTTLED
    assert classify(of_httpx(413, {"Retry-After": "30"})).category is FailureCategory.THROTTLED
    assert classify(of_httpx(404, {"Retry-After": "30"})).category is FailureCategory.PERMANENT


@settings(deadline=None)
@example(value="Mon, 1 Jan 2026 00:00:00 +9999999999999999")
@example(value="Mon, 1 Jan 99999999999999999999 00:00:00 GMT")
@given(value=st.one_of(st.text(), st.integers().map(str), st.floats().map(str), st.datetimes().map(str)))
def test_nonsense_for_a_wait_is_no_wait_and_no_error(value: str) -> None:
    error = of_botocore(429, {"Retry-After": value})

    wait_s = classify(error, now=NOW).not_before_s

    assert 0 <= wait_s < 10**11


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (httpx.ConnectError("refused"), FailureCategory.TRANSIENT),
        (httpx.ReadTimeout("slow"), FailureCategory.TRANSIENT),
        (httpx.RemoteProtocolError("cut off"), FailureCategory.TRANSIENT),
        (httpx.UnsupportedProtocol("ftp"), FailureCategory.PERMANENT),
        (httpx.InvalidURL("no"), FailureCategory.PERMANENT),
        (requests.ConnectionError("refused"), FailureCategory.TRANSIENT),
        (requests.ReadTimeout("slow"), FailureCategory.TRANSIENT),
        (requests.exceptions.ChunkedEncodingError("cut off"), FailureCategory.TRANSIENT),
        (requests.exceptions.MissingSchema("no"), FailureCategory.PERMANENT),
        (requests.exceptions.InvalidURL("no"), FailureCategory.PERMANENT),
        (aiohttp.ServerDisconnectedError(), FailureCategory.TRANSIENT),
        (aiohttp.ServerTimeoutError("slow"), FailureCategory.TRANSIENT),
        (aiohttp.ClientPayloadError("cut off"), FailureCategory.TRANSIENT),
        (aiohttp.InvalidURL("no"), FailureCategory.PERMANENT),
        (urllib3.exceptions.ProtocolError("cut off"), FailureCategory.TRANSIENT),
        (urllib3.exceptions.ReadTimeoutError(None, "/", "slow"), FailureCategory.TRANSIENT),  # type: ignore[arg-type]
        (urllib3.exceptions.MaxRetryError(None, "/"), FailureCategory.TRANSIENT),  # type: ignore[arg-type]
        (urllib3.exceptions.LocationParseError("no"), FailureCategory.PERMANENT),
    ],
    ids=lambda value: (
        f"{type(value).__module__}.{type(value).__name__}" if isinstance(value, Exception) else str(value)
    ),
)
def test_what_never_got_an_answer_means_what_its_class_says(error: BaseException, category: FailureCategory) -> None:
    assert classify(error).category is category


@pytest.mark.parametrize(
    ("code", "category"),
    [
        ("ThrottlingException", FailureCategory.THROTTLED),
        ("ProvisionedThroughputExceededException", FailureCategory.THROTTLED),
        ("RequestTimeout", FailureCategory.TRANSIENT),
        ("ExpiredToken", FailureCategory.UNKNOWN),
        ("ValidationException", FailureCategory.PERMANENT),
    ],
)
def test_a_service_of_aws_is_understood_by_its_own_code(code: str, category: FailureCategory) -> None:
    assert classify(of_botocore(400, {}, code=code)).category is category


@every_client
@pytest.mark.parametrize("status", [404, 429, 500])
def test_an_error_means_the_same_after_it_has_crossed_into_another_process(client: Client, status: int) -> None:
    error = client(status, {"Retry-After": "7"})

    assert classify(error_from_json(json.loads(json.dumps(error_to_json(error))))) == classify(error)


def test_the_code_of_an_aws_service_crosses_too() -> None:
    error = of_botocore(400, {}, code="ThrottlingException")

    assert classify(error_from_json(error_to_json(error))).category is FailureCategory.THROTTLED


def test_an_apps_own_error_around_a_clients_means_what_the_clients_means() -> None:
    error = RuntimeError("charging failed")
    error.__cause__ = of_httpx(429, {"Retry-After": "7"})

    assert classify(error) == Failure(category=FailureCategory.THROTTLED, not_before_s=7)


def test_an_answer_that_is_no_error_and_things_that_only_look_like_one_say_nothing() -> None:
    odd = [aiohttp_ok(), Odd(response="403"), Odd(response={"Error": 1}), Odd(status=503, headers={}), Failing()]

    assert {classify(error).category for error in odd} == {FailureCategory.UNKNOWN}


def aiohttp_ok() -> BaseException:
    """What aiohttp raises where a body is not what was expected."""
    url = URL("http://host/")
    info = aiohttp.RequestInfo(url, "GET", CIMultiDictProxy(CIMultiDict()), url)
    return aiohttp.ContentTypeError(info, (), status=200)


class Odd(Exception):
    def __init__(self, **fields: object) -> None:
        super().__init__()
        self.__dict__.update(fields)


class Failing(Exception):
    @property
    def response(self) -> object:
        raise RuntimeError("there is none")

    retry_after_s = sqlstate = orig = response
