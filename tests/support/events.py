"""Hypothesis strategies for everything an event may hold."""

from datetime import UTC, datetime

from hypothesis import strategies as st

from outbox.event import Event, Ordering, Tier

#: Any Unicode text that PostgreSQL and UTF-8 can hold.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=255)
tenants = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=200)
types = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,40}", fullmatch=True)
sources = st.from_regex(r"[!-~]{1,80}", fullmatch=True)
times = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(lambda time: time.replace(tzinfo=UTC))  # noqa: DTZ001 (made aware here)
numbers = st.integers(0, 2**63 - 1)
orderings = st.builds(
    Ordering,
    key=texts,
    number=numbers,
    is_first=st.booleans(),
    previous_time=st.none() | times,
    is_void=st.booleans(),
)
traceparents = st.from_regex(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", fullmatch=True)
#: Bodies with their content type: JSON, text and bytes that are neither.
payloads = st.one_of(
    st.tuples(st.just("application/json"), st.sampled_from([b'{"a":1}', b"[]", b'"x"', b"1", '{"ü":"ß"}'.encode()])),
    st.tuples(st.just("application/octet-stream"), st.binary(max_size=200)),
)


@st.composite
def events(draw: st.DrawFn) -> Event:
    """Any event that can be committed."""
    content_type, payload = draw(payloads)
    optional = {
        name: draw(st.none() | texts)
        for name in ("idempotency_key", "actor", "causation_id", "correlation_id", "replay")
    }
    return Event(
        id=draw(st.uuids()),
        tenant=draw(tenants),
        tier=draw(st.sampled_from(Tier)),
        type=draw(types),
        data_version=draw(st.integers(0, 2**31 - 1)),
        source=draw(sources),
        content_type=content_type,
        payload=payload,
        time=draw(times),
        ledger_time=draw(times),
        ordering=draw(st.none() | orderings),
        traceparent=draw(st.none() | traceparents),
        tracestate=draw(st.none() | st.from_regex(r"[ -~]{1,80}", fullmatch=True)),
        **optional,
    )
