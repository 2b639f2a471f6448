"""Spans, sent to a collector by OTLP over HTTP. The only module that imports OpenTelemetry.

A thread of the SDK's sends what waits, and what waits is bounded: if the collector does not take it, the oldest is dropped,
and no work waits. The SDK's own variables (OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER, OTEL_BSP_*, OTEL_RESOURCE_ATTRIBUTES,
...) hold as it documents them. Nothing is registered for the whole process, so traces of other libraries are not sent.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, Status, StatusCode, set_span_in_context
from structlog.typing import FilteringBoundLogger as Log

from service.telemetry.spans import Span, SpanHandle

CLOSING_TIMEOUT_S = 2.0
"""How long a stop waits for the collector. Spans that are left then are lost."""


class OtlpTraces:
    """endpoint: with its path; None for that of the variables. Raises ValueError where a variable cannot be read."""

    def __init__(self, endpoint: str | None, *, host: str, log: Log) -> None:
        self.made = 0
        self._exporter = _LoggingExporter(OTLPSpanExporter(endpoint=endpoint), log)
        ours = {"service.name": "leasehold", "service.version": version("leasehold"), "service.instance.id": host}
        self._provider = TracerProvider(
            resource=Resource.create(ours).merge(OTELResourceDetector().detect()), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("leasehold", version("leasehold"))

    @property
    def exported(self) -> int:
        return self._exporter.exported

    def send(self, span: Span, *, within: SpanHandle | None = None, after: SpanHandle | None = None) -> SpanHandle:
        context = Context()
        if within is not None:
            assert isinstance(within, SpanContext), "`within` must be a SpanContext"
            context = set_span_in_context(NonRecordingSpan(within), context)
        links = []
        if after is not None:
            assert isinstance(after, SpanContext), "`after` must be a SpanContext"
            links.append(Link(after))
        return self._export(span, time.time_ns(), context, links)

    async def close(self) -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop may have ended meanwhile
                loop.call_soon_threadsafe(done.set)

        threading.Thread(
            target=shut, name="closing traces", daemon=True
        ).start()  # an end of the process waits for no other
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_TIMEOUT_S):
                await done.wait()

    def _export(self, span: Span, now_ns: int, context: Context, links: Sequence[Link]) -> SpanContext:
        ended_ns = now_ns - _ns(span.ended_s_ago)
        made = self._tracer.start_span(
            span.name, context, attributes=span.attributes, links=links, start_time=ended_ns - _ns(span.took_s)
        )
        if span.parts:
            within = set_span_in_context(made, context)
            for part in span.parts:
                self._export(part, now_ns, within, ())
        if span.error is not None:
            made.set_status(Status(StatusCode.ERROR, span.error))
        made.end(ended_ns)
        self.made += made.get_span_context().trace_flags.sampled
        return made.get_span_context()


class _LoggingExporter(SpanExporter):
    """Counts exported spans, and logs once when exporting fails and once when it works again. Runs on the SDK's thread."""

    def __init__(self, exporter: SpanExporter, log: Log) -> None:
        self.exported = 0
        self._exporter = exporter
        self._log = log
        self._is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.exported += len(spans)
        self._log_change(is_failing=result is not SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def _log_change(self, *, is_failing: bool) -> None:
        if is_failing and not self._is_failing:
            self._log.warning(
                "cannot export traces", why="the collector does not answer, or refuses; work continues without it"
            )
        elif self._is_failing and not is_failing:
            self._log.info("exporting traces again")
        self._is_failing = is_failing


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
