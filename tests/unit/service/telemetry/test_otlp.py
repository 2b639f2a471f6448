"""Spans on the wire, as a collector sees them; and that nobody waits for it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import structlog
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from structlog.testing import capture_logs

from service.config.settings import TelemetrySettings
from service.telemetry.otlp import OtlpTraces
from service.telemetry.spans import Span, traces_of

QUEUE = 64
SPAN = Span(name="batch", took_s=3.0, attributes={"leasehold.partition": "7", "leasehold.epoch": 4})


class Collector:
    """An HTTP server that takes OTLP. status: what it answers; `hangs`: set while it answers nothing."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.answers = threading.Event()
        self.answers.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.answers.wait()
                if collector.status == 200:
                    collector.headers.append(dict(self.headers))
                    collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(collector.status)
                self.end_headers()

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    @property
    def spans(self) -> list[WireSpan]:
        return [
            span
            for request in list(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def resource(self) -> dict[str, Any]:
        return attributes(self.requests[0].resource_spans[0].resource)


def attributes(of: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in of.attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with _serving() as found:
        yield found


@contextmanager
def _serving() -> Iterator[Collector]:
    found = Collector()
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield found
    finally:
        found.answers.set()
        found.server.shutdown()
        found.server.server_close()
        thread.join()


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The SDK's variables: sends soon, and little waits."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", str(QUEUE))
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    return monkeypatch


def traces_to(url: str) -> OtlpTraces:
    made = traces_of(TelemetrySettings(traces=url), {}, host="host-a", log=structlog.get_logger())
    assert isinstance(made, OtlpTraces)
    return made


@pytest.mark.usefixtures("environ")
async def test_a_host_s_batches_arrive_as_traces_with_their_stages(start, eventually, collector: Collector) -> None:
    traces = traces_to(collector.url)
    running = await start(partitions=["a"], traces=traces)
    running.feeds["bank"].append("a", [b"{}"] * 3)
    await eventually(lambda: {"batch", "checkpoint", "acquire"} <= {span.name for span in collector.spans})
    await traces.close()
    named = {span.name: span for span in collector.spans}
    batch, acquire = named["batch"], named["acquire"]
    for name in ("read", "transform", "queue", "deliver", "checkpoint"):
        assert (named[name].trace_id, named[name].parent_span_id) == (batch.trace_id, batch.span_id), name
    assert not batch.parent_span_id
    assert [link.span_id for link in batch.links] == [acquire.span_id]
    assert abs(named["read"].start_time_unix_nano - batch.start_time_unix_nano) < 1000
    assert named["deliver"].end_time_unix_nano == batch.end_time_unix_nano <= time.time_ns()
    assert attributes(batch) == {
        "leasehold.pipeline": "bank",
        "leasehold.partition": "a",
        "leasehold.epoch": 1,
        "leasehold.generation": 0,
        "leasehold.to": "3",
        "leasehold.events": 3,
        "leasehold.dead_letters": 0,
    }
    resource = collector.resource
    assert (resource["service.name"], resource["service.instance.id"]) == ("leasehold", "host-a")
    assert traces.made == traces.exported == len(collector.spans)


async def test_the_variables_of_opentelemetry_hold(environ: pytest.MonkeyPatch, collector: Collector) -> None:
    environ.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    environ.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=hunter2")
    environ.setenv("OTEL_SERVICE_NAME", "bank")
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    traces = traces_of(TelemetrySettings(), variables, host="host-a", log=structlog.get_logger())
    assert traces is not None
    traces.send(Span(name="renew", took_s=0.5, attributes={}, error="StoreUnavailable: throttled"))
    await traces.close()
    (span,) = collector.spans
    assert (span.name, span.status.code, span.status.message) == ("renew", 2, "StoreUnavailable: throttled")
    assert span.end_time_unix_nano - span.start_time_unix_nano == 500_000_000
    assert collector.resource["service.name"] == "bank"
    assert collector.headers[0]["x-api-key"] == "hunter2"
    assert b"hunter2" not in collector.requests[0].SerializeToString()


async def test_a_collector_that_hangs_is_waited_for_by_nobody(
    environ: pytest.MonkeyPatch, collector: Collector
) -> None:
    environ.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", str(hangs_s := 30))
    collector.answers.clear()
    traces, began = traces_to(collector.url), time.monotonic()
    for _ in range(10 * QUEUE):
        traces.send(SPAN)
        assert time.monotonic() - began < hangs_s, "a span has waited for the collector"
    assert _waiting(traces) <= QUEUE
    await traces.close()
    assert time.monotonic() - began < hangs_s
    assert (traces.made, traces.exported, collector.requests) == (10 * QUEUE, 0, [])


@pytest.mark.usefixtures("environ")
async def test_a_collector_that_is_away_is_told_once_and_so_is_its_return(eventually, collector: Collector) -> None:
    collector.status = 400
    with capture_logs() as said:
        traces = traces_to(collector.url)
        for _ in range(10 * QUEUE):
            traces.send(SPAN)
        await eventually(lambda: said)
        collector.status = 200

        async def again() -> bool:
            traces.send(SPAN)
            await asyncio.sleep(0.03)
            return len(said) > 1

        await eventually(again)
        await traces.close()
    assert [line["event"] for line in said] == ["cannot export traces", "exporting traces again"]
    assert 0 < traces.exported < traces.made


def _waiting(traces: OtlpTraces) -> int:
    (processor,) = traces._provider._active_span_processor._span_processors
    return len(processor._batch_processor._queue)  # type: ignore[attr-defined]


def test_where_nobody_asks_nothing_of_opentelemetry_is_imported() -> None:
    code = (
        "import os, sys, structlog, service.wiring.build\n"
        "from service.config.settings import TelemetrySettings\n"
        "traces = service.wiring.build.traces_of(TelemetrySettings(), {}, host='a', log=structlog.get_logger())\n"
        "print(traces, [name for name in sys.modules if name.partition('.')[0] in ('opentelemetry', 'requests')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout == "None []\n"
