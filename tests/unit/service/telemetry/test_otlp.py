"""Spans on the wire, as a collector sees them; and that nobody waits for it."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import structlog
from lab.servers.otlp import Collector, attributes
from patience import PATIENCE_S, until_async
from structlog.testing import capture_logs

from leasehold.service.config.telemetry import TelemetrySettings
from leasehold.service.telemetry.otlp import OtlpTraces
from leasehold.service.telemetry.signals import traces_of
from leasehold.service.telemetry.spans import Span, SpanFailure

QUEUE = 64  # as the fixture `environ` has it
SPAN = Span(name="batch", took_s=3.0, attributes={"leasehold.partition": "7", "leasehold.epoch": 4})


def traces_to(url: str) -> OtlpTraces:
    made = traces_of(TelemetrySettings(traces=url), {}, host="host-a", log=structlog.get_logger())
    assert isinstance(made, OtlpTraces)
    return made


@pytest.mark.usefixtures("environ")
async def test_a_host_s_batches_arrive_as_traces_with_their_stages(start, collector: Collector) -> None:
    traces = traces_to(collector.url)
    running = await start(partitions=["a"], traces=traces)
    running.feeds["bank"].append("a", [b"{}"] * 3)
    names = {"process", "checkpoint", "acquire"}
    await until_async(lambda: names <= {span.name.partition(" ")[0] for span in collector.spans})
    await traces.close()
    named = {span.name.partition(" ")[0]: span for span in collector.spans}
    process, acquire = named["process"], named["acquire"]
    for name in ("receive", "transform", "queue", "deliver", "checkpoint"):
        assert (named[name].trace_id, named[name].parent_span_id) == (process.trace_id, process.span_id), name
    assert not process.parent_span_id
    assert [link.span_id for link in process.links] == [acquire.span_id]
    stages = [named[name] for name in ("receive", "transform", "queue")]  # "deliver" has its own reading of the clock
    assert sorted(stages, key=lambda stage: stage.start_time_unix_nano) == stages
    assert process.end_time_unix_nano <= time.time_ns()
    assert {name: value for name, value in attributes(process).items() if name.startswith("leasehold.")} == {
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
    traces.send(
        Span(
            name="renew",
            took_s=0.5,
            attributes={},
            error=SpanFailure("leasehold.leases.errors.StoreUnavailable", "StoreUnavailable: throttled"),
        )
    )
    await traces.close()
    (span,) = collector.spans
    assert attributes(span)["error.type"] == "leasehold.leases.errors.StoreUnavailable"
    assert (span.name, span.status.code, span.status.message) == ("renew", 2, "StoreUnavailable: throttled")
    assert span.end_time_unix_nano - span.start_time_unix_nano == 500_000_000
    assert collector.resource["service.name"] == "bank"
    assert collector.headers[0]["x-api-key"] == "hunter2"
    assert b"hunter2" not in collector.requests[0].SerializeToString()


async def test_a_collector_that_hangs_is_waited_for_by_nobody(
    environ: pytest.MonkeyPatch, collector: Collector
) -> None:
    """An exporter that had given up would say so."""
    environ.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", str(PATIENCE_S))
    collector.answers.clear()
    with capture_logs() as said:
        traces = traces_to(collector.url)
        for _ in range(10 * QUEUE):
            traces.send(SPAN)
        assert _waiting(traces) <= QUEUE
        await traces.close()
        assert said == []
    assert (traces.made, traces.exported, collector.requests) == (10 * QUEUE, 0, [])


@pytest.mark.usefixtures("environ")
async def test_a_collector_that_is_away_is_told_once_and_so_is_its_return(collector: Collector) -> None:
    collector.status = 400
    with capture_logs() as said:
        traces = traces_to(collector.url)
        for _ in range(10 * QUEUE):
            traces.send(SPAN)
        await until_async(lambda: said)
        collector.status = 200

        async def again() -> bool:
            traces.send(SPAN)
            return len(said) > 1

        await until_async(again)
        await traces.close()
    assert [line["event"] for line in said] == ["cannot export traces", "exporting traces again"]
    assert 0 < traces.exported < traces.made


def _waiting(traces: OtlpTraces) -> int:
    (processor,) = traces._provider._active_span_processor._span_processors
    return len(processor._batch_processor._queue)  # type: ignore[attr-defined]


def test_where_nobody_asks_nothing_of_opentelemetry_is_imported() -> None:
    code = (
        "import os, sys, structlog, leasehold.service.wiring.build\n"
        "from leasehold.service.config.settings import TelemetrySettings\n"
        "traces = leasehold.service.wiring.build.traces_of(TelemetrySettings(), {}, host='a', log=structlog.get_logger())\n"
        "print(traces, [name for name in sys.modules if name.partition('.')[0] in ('opentelemetry', 'requests')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert found.stdout == "None []\n"
