"""Output as events of a hub: never larger than foreseen, and what consumers read is what was written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from azure.eventhub._pyamqp._decode import decode_payload
from hypothesis import example, given
from hypothesis import strategies as st

from leasehold.pipeline.connectors.eventhubs.amqp.decode import event_at
from leasehold.pipeline.connectors.eventhubs.broker import ENVELOPE_BYTES, size_of
from leasehold.pipeline.connectors.eventhubs.sink.bodies import bodies_of, size_max
from leasehold.pipeline.markers import PREFIX, Marker, marker_in
from leasehold.pipeline.publishing_writer import PUBLISHED_SCHEMA
from leasehold.pipeline.tracing import TraceContext
from leasehold_emulators.eventhubs.messages import event, placed

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
EVENTS = st.fixed_dictionaries(
    {
        "key": st.none() | TEXTS,
        "body": st.none() | st.binary(max_size=400),
        "operation": st.none() | TEXTS,
        "properties": st.none() | st.dictionaries(TEXTS, st.none() | TEXTS, max_size=5).map(lambda d: list(d.items())),
    }
)


PARENT = f"00-{7:032x}-{1:016x}-01"
TRACES = st.sampled_from([None, TraceContext(PARENT), TraceContext(PARENT, "k=v")])


@example([{"key": None, "body": b"", "operation": None, "properties": [(PREFIX, None), ("own", "1")]}], "", None, None)
@given(st.lists(EVENTS, min_size=1, max_size=20), TEXTS, st.none() | TEXTS, TRACES)
def test_events_are_what_was_written_and_no_larger_than_foreseen(
    rows: list[dict[str, Any]], to: str, start: str | None, trace: TraceContext | None
) -> None:
    events = pa.Table.from_pylist(rows, PUBLISHED_SCHEMA)
    marker = Marker(lease="p/0", generation=0, level=32766, start=start, to=to, count=len(rows))
    bodies = bodies_of(events, marker, trace)
    assert ENVELOPE_BYTES + sum(map(size_of, bodies)) <= size_max(events, marker, trace) + ENVELOPE_BYTES
    context = {} if trace is None else {"Diagnostic-Id": trace.parent, **trace.properties}
    for index, (row, body) in enumerate(zip(rows, bodies, strict=True)):
        message = decode_payload(memoryview(body))
        found = {
            name.decode(): None if value is None else value.decode()
            for name, value in message.application_properties.items()
        }
        assert b"".join(message.data) == (row["body"] or b"")
        assert marker_in({name: value or "" for name, value in found.items()}) == marker
        assert found["leasehold-index"] == str(index)
        assert (found.get("leasehold-key"), found.get("leasehold-operation")) == (row["key"], row["operation"])
        assert without_reserved(found) == {**without_reserved(dict(row["properties"] or ())), **context}


def test_a_context_takes_the_place_of_an_earlier_one() -> None:
    row = {
        "key": None,
        "body": b"",
        "operation": None,
        "properties": [("traceparent", "x"), ("tracestate", "x"), ("own", "1")],
    }
    marker = Marker(lease="p/0", generation=0, level=3, start=None, to="9", count=1)
    (body,) = bodies_of(pa.Table.from_pylist([row], PUBLISHED_SCHEMA), marker, TraceContext(PARENT))
    found = decode_payload(memoryview(body)).application_properties
    assert {name: found.get(name) for name in (b"own", b"traceparent", b"tracestate", b"Diagnostic-Id")} == {
        b"own": b"1",
        b"traceparent": PARENT.encode(),
        b"tracestate": None,
        b"Diagnostic-Id": PARENT.encode(),
    }


def without_reserved(properties: Mapping[str, str | None]) -> dict[str, str | None]:
    """The sink leaves out what a row has under the markers' prefix."""
    return {name: value for name, value in properties.items() if not name.startswith(PREFIX)}


@given(st.lists(EVENTS, min_size=1, max_size=20))
def test_a_feed_that_trusts_properties_makes_columns_again_of_what_the_sink_put_into_properties(
    rows: list[dict[str, Any]],
) -> None:
    marker = Marker(lease="p/0", generation=0, level=3, start=None, to="9", count=len(rows))
    for index, (row, body) in enumerate(
        zip(rows, bodies_of(pa.Table.from_pylist(rows, PUBLISHED_SCHEMA), marker), strict=True)
    ):
        message = placed(event(body), index, index * 10, 1000)
        found = event_at(message, 0, len(message), trusts_properties=True)
        assert (found.body, found.key, found.operation) == (row["body"] or b"", row["key"], row["operation"])
        own = {"leasehold-index": str(index), **dict(row["properties"] or ())}
        assert dict(found.properties) == {**marker.properties(), **own}
