"""A producer's trace through two pipelines into PostgreSQL, as a collector sees it; with the metrics and the log of the host."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lab.servers.conventions import problems_of, problems_of_metric
from lab.servers.otlp import Collector, attributes, serving
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from patience import PATIENCE_S
from plugins_pg import Postgres
from unit.pipeline.destinations import Trusted, claim

from leasehold.pipeline.connectors.log import LogOutputSink
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.sink import Output

EVENTS = """CREATE TABLE IF NOT EXISTS events (
    id bigserial, partition text, sequence bigint, "offset" text, enqueued_time timestamptz, key text, body bytea,
    properties jsonb, operation text)"""
SETTINGS = """
    leases: {{type: sqlite, path: leases.db}}
    api: {{enabled: false}}
    telemetry: {{traces: "{url}", metrics: "{url}", logs: "{url}"}}
    pipelines:
      - name: copy
        feed: {{type: log, path: orders, start: earliest}}
        sink: {{type: log, path: copies}}
      - name: store
        feed: {{type: log, path: copies, start: earliest}}
        sink: {{type: postgres, dsn: "${{DSN}}", setup: {events!r}, table: events}}
    """
MAP = EVENT_SCHEMA.field("properties").type


@pytest.fixture
def collector() -> Iterator[Collector]:
    with serving() as found:
        yield found


def parent(trace: int, span: int = 1) -> str:
    return f"00-{trace:032x}-{span:016x}-01"


async def published(folder: Path, *properties: dict[str, str]) -> None:
    """What a producer of its own has put into the log of orders."""
    sink = LogOutputSink(folder / "orders")
    await sink.prepare()
    writer = await sink.open(claim())
    table = pa.table(
        {"body": [b"{}"] * len(properties), "properties": pa.array([[*p.items()] for p in properties], MAP)}
    )
    await writer.write(Output(table=table, start=None, to="1", events=len(properties)), Trusted())
    await sink.close()


async def run(folder: Path, postgres: Postgres, collector: Collector, **environ: str) -> None:
    """`leasehold run --until-idle`, in a process of its own."""
    settings = textwrap.dedent(SETTINGS).format(url=collector.url, events=" ".join(EVENTS.split()))
    (folder / "leasehold.yaml").write_text(settings)
    ours = {"DSN": postgres.dsn, "OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_METRIC_EXPORT_INTERVAL": "200"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "leasehold", "run", str(folder / "leasehold.yaml"), "--until-idle"),
        env={**os.environ, **ours, **environ},
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 0, output.decode()


def ancestors(span: Span, spans: list[Span]) -> list[str]:
    """The names of a span and of those around it, and then the id of a span from elsewhere."""
    by_id = {each.span_id: each for each in spans}
    names = [span.name]
    while (outer := by_id.get(span.parent_span_id)) is not None:
        span = outer
        names.append(span.name)
    return [*names, span.parent_span_id.hex()]


def named(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name.startswith(name)]


async def test_a_producer_s_trace_goes_through_two_pipelines_into_the_commit(
    tmp_path: Path, postgres: Postgres, collector: Collector
) -> None:
    orders, copies = tmp_path / "orders", tmp_path / "copies"
    await published(tmp_path, *[{"traceparent": parent(7, 9), "tracestate": "k=v", "own": "1"}] * 3)
    await run(tmp_path, postgres, collector)
    assert postgres.fetch("SELECT count(*) FROM events") == [(3,)]
    spans = collector.spans
    (commit,) = named(spans, "COMMIT")
    assert ancestors(commit, spans) == [
        "COMMIT events",
        f"process {copies}",
        f"send {copies}",
        f"process {orders}",
        f"{9:016x}",
    ]
    assert {span.trace_id.hex() for span in (commit, *named(spans, "process"))} == {f"{7:032x}"}
    (process,) = named(spans, f"process {orders}")
    assert f"{9:016x}" in [link.span_id.hex() for link in process.links]
    assert attributes(process)["messaging.batch.message_count"] == 3
    (send,) = named(spans, "send")
    stored = [dict(row[0]) for row in postgres.fetch("SELECT properties FROM events")]
    context = f"00-{send.trace_id.hex()}-{send.span_id.hex()}-01"
    assert stored == [{"own": "1", "traceparent": context, "tracestate": "k=v"}] * 3
    found = attributes(commit)
    assert (found["db.system.name"], found["db.namespace"]) == (
        "postgresql",
        postgres.fetch("SELECT current_database()")[0][0],
    )
    assert (found["leasehold.pipeline"], found["leasehold.rows"]) == ("store", 3)


async def test_what_is_sent_is_as_the_conventions_want_it(
    tmp_path: Path, postgres: Postgres, collector: Collector
) -> None:
    await published(tmp_path, {"traceparent": parent(7)}, {})
    began = datetime.now(UTC)
    await run(tmp_path, postgres, collector)
    spans = collector.spans
    assert [problem for span in spans for problem in problems_of(span)] == []
    operations = {attributes(span).get("messaging.operation.name") for span in spans}
    assert operations >= {"receive", "process", "send", "checkpoint"}
    conventional = {
        name: each for name, each in collector.metrics.items() if not name.startswith(("leasehold_", "process_"))
    }
    assert conventional.keys() == {
        "messaging.client.consumed.messages",
        "messaging.client.sent.messages",
        "messaging.client.operation.duration",
        "messaging.process.duration",
        "db.client.operation.duration",
    }
    assert [problem for each in conventional.values() for problem in problems_of_metric(each)] == []
    delivered = collector.metrics["leasehold_events_delivered"].sum.data_points
    assert {attributes(point)["pipeline"]: point.as_double for point in delivered} == {"copy": 2.0, "store": 2.0}
    sent = conventional["messaging.client.sent.messages"].sum.data_points
    assert [point.as_double for point in sent] == [2.0]
    bodies = {record.body.string_value: record for record in collector.logs}
    assert {"lease acquired", "pipeline summary"} <= bodies.keys()
    assert bodies["lease acquired"].time_unix_nano >= began.timestamp() * 1e9


async def test_events_of_several_producers_are_linked_and_bad_properties_do_no_harm(
    tmp_path: Path, postgres: Postgres, collector: Collector
) -> None:
    bad: list[dict[str, Any]] = [{"traceparent": "x" * 10_000}, {"traceparent": f"{parent(3)}\r\nx: y"}, {}]
    await published(tmp_path, {"traceparent": parent(1)}, {"Diagnostic-Id": parent(2)}, *bad)
    await run(tmp_path, postgres, collector)
    (process,) = named(collector.spans, f"process {tmp_path / 'orders'}")
    linked = [link.trace_id.hex() for link in process.links]
    assert {f"{1:032x}", f"{2:032x}"} <= {*linked}
    assert len(linked) == 3, "these two, and the acquisition"
    assert not process.parent_span_id
    assert postgres.fetch("SELECT count(*) FROM events") == [(5,)]


async def test_without_propagators_events_are_published_as_they_are(
    tmp_path: Path, postgres: Postgres, collector: Collector
) -> None:
    await published(tmp_path, {"traceparent": parent(7)})
    await run(tmp_path, postgres, collector, OTEL_PROPAGATORS="none")
    (process,) = named(collector.spans, f"process {tmp_path / 'orders'}")
    assert process.trace_id.hex() != f"{7:032x}"
    assert [dict(row[0]) for row in postgres.fetch("SELECT properties FROM events")] == [{"traceparent": parent(7)}]
