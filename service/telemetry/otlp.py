"""Traces, metrics and logs, sent to a collector by OTLP over HTTP. The only module that imports OpenTelemetry.

The SDK's threads send from bounded queues: if the collector accepts nothing, spans and logs are dropped, and no work waits.
The SDK's own variables (OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER, OTEL_BSP_*, OTEL_BLRP_*,
OTEL_METRIC_EXPORT_INTERVAL, OTEL_RESOURCE_ATTRIBUTES, ...) apply as the SDK documents them. Only the handler of logs is
registered for the whole process, so traces and metrics of other libraries are not sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from opentelemetry._logs import SeverityNumber
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.environment_variables import OTEL_METRIC_EXPORT_INTERVAL
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as MetricHistogram
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace import Span as SdkSpan
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.distribution import own_version
from leasehold.pipeline.tracing import PARENT, STATE, TraceContext
from leasehold.service.telemetry.conventions import SCHEMA_URL, Value
from leasehold.service.telemetry.figures import Figure, Point
from leasehold.service.telemetry.logs import FieldsHandler
from leasehold.service.telemetry.spans import Span, SpanFailure, SpanHandle

CLOSING_TIMEOUT_S = 2.0
"""How long a stop waits for the collector. What is left then is lost."""
READ_TIMEOUT_S = 5.0
"""How long a thread waits for figures from the event loop."""
_PROPAGATOR = TraceContextTextMapPropagator()
_KINDS = {
    "internal": SpanKind.INTERNAL,
    "client": SpanKind.CLIENT,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
}
_SEVERITIES = {
    "debug": SeverityNumber.DEBUG,
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "error": SeverityNumber.ERROR,
    "critical": SeverityNumber.FATAL,
}


def _resource(host: str) -> Resource:
    ours = {"service.name": "leasehold", "service.version": own_version(), "service.instance.id": host}
    return Resource.create(ours).merge(OTELResourceDetector().detect())


class _Exports:
    """Counts what an exporter has sent, and logs once when it fails and once when it works again.

    Runs on the SDK's threads. What is logged there is not sent as a log: an export that fails would cause the next.
    """

    _thread = threading.local()

    def __init__(self, signal: str, log: Log) -> None:
        self.count = 0
        self._signal = signal
        self._log = log
        self._is_failing = False

    @classmethod
    def is_here(cls) -> bool:
        """Whether this thread exports now."""
        return getattr(cls._thread, "exports", False)

    def watch(self, exporter: Any, size: Callable[[Any], int]) -> None:
        """Watch its `export` from now on. All exporters have this method, and a result with the name SUCCESS."""
        export = exporter.export

        def watched(batch: Any, *given: Any, **named: Any) -> Any:
            with self._marked():
                result = export(batch, *given, **named)
                is_failing = result.name != "SUCCESS"
                self.count += 0 if is_failing else size(batch)
                self._log_change(is_failing=is_failing)
                return result

        exporter.export = watched

    @contextmanager
    def _marked(self) -> Iterator[None]:
        self._thread.exports = True
        try:
            yield
        finally:
            self._thread.exports = False

    def _log_change(self, *, is_failing: bool) -> None:
        if is_failing and not self._is_failing:
            self._log.warning(
                f"cannot export {self._signal}",
                why="the collector does not answer, or refuses; work continues without it",
            )
        elif self._is_failing and not is_failing:
            self._log.info(f"exporting {self._signal} again")
        self._is_failing = is_failing


async def _end(what: str, shutdown: Callable[[], object]) -> None:
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def shut() -> None:
        shutdown()
        with suppress(RuntimeError):  # the loop may have ended meanwhile
            loop.call_soon_threadsafe(done.set)

    threading.Thread(
        target=shut, name=f"closing {what}", daemon=True
    ).start()  # the end of the process does not wait for daemons
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSING_TIMEOUT_S):
            await done.wait()


class OtlpTraces:
    """endpoint: with its path; None for that of the variables. Raises ValueError if a variable cannot be read."""

    def __init__(self, endpoint: str | None, *, host: str, log: Log, propagates: bool = True) -> None:
        self.made = 0
        self.propagates = propagates
        exporter = OTLPSpanExporter(endpoint=endpoint)
        self._exports = _Exports("traces", log)
        self._exports.watch(exporter, len)
        self._provider = TracerProvider(resource=_resource(host), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("leasehold", own_version(), schema_url=SCHEMA_URL)

    @property
    def exported(self) -> int:
        return self._exports.count

    def send(self, span: Span, *, within: SpanHandle | None = None, after: SpanHandle | None = None) -> SpanHandle:
        ended_ns = time.time_ns() - _ns(span.ended_s_ago)
        begun = self._begin(span, ended_ns, within, () if after is None else (after,))
        begun.end_at(ended_ns, span.error)
        return begun.handle

    def begin(
        self,
        span: Span,
        *,
        within: SpanHandle | TraceContext | None = None,
        links: Sequence[SpanHandle | TraceContext] = (),
    ) -> OtlpSpan:
        return self._begin(span, time.time_ns(), within, links)

    async def close(self) -> None:
        await _end("traces", self._provider.shutdown)

    def _begin(
        self,
        span: Span,
        now_ns: int,
        within: SpanHandle | TraceContext | None,
        links: Sequence[SpanHandle | TraceContext],
    ) -> OtlpSpan:
        context = Context()
        if within is not None:
            context = set_span_in_context(NonRecordingSpan(_span_context(within)), context)
        made = self._tracer.start_span(
            span.name,
            context,
            kind=_KINDS[span.kind],
            attributes=span.attributes,
            links=[Link(_span_context(each)) for each in links],
            start_time=now_ns - _ns(span.took_s),
        )
        return OtlpSpan(made, self._count)

    def _count(self) -> None:
        self.made += 1


class OtlpSpan:
    """A span that has begun. ended: called when it ends, if it was sampled."""

    def __init__(self, span: SdkSpan, ended: Callable[[], None]) -> None:
        self._span = span
        self._ended = ended

    @property
    def handle(self) -> SpanHandle:
        return self._span.get_span_context()

    @property
    def context(self) -> TraceContext:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(self._span, Context()))
        return TraceContext(carrier[PARENT], carrier.get(STATE))

    def end(self, attributes: Mapping[str, Value] | None = None, *, error: SpanFailure | None = None) -> None:
        self._span.set_attributes(dict(attributes or {}))
        self.end_at(time.time_ns(), error)

    def end_at(self, time_ns: int, error: SpanFailure | None) -> None:
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error.message))
            self._span.set_attribute("error.type", error.type)
        self._span.end(time_ns)
        if self._span.get_span_context().trace_flags.sampled:
            self._ended()


def _span_context(of: SpanHandle | TraceContext) -> SpanContext:
    if isinstance(of, TraceContext):
        return get_current_span(_PROPAGATOR.extract(of.properties, Context())).get_span_context()
    assert isinstance(of, SpanContext), "a handle is a SpanContext"
    return of


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


class OtlpMetrics:
    """Sends what `read` returns, at the interval of OTEL_METRIC_EXPORT_INTERVAL and once more at the end.

    The SDK's readers export what its own instruments have measured, and those have no histograms of counts made elsewhere.
    So a thread here calls the exporter. endpoint: as for OtlpTraces. Raises ValueError if a variable cannot be read.
    """

    def __init__(
        self, endpoint: str | None, *, host: str, log: Log, read: Callable[[], Awaitable[list[Figure]]]
    ) -> None:
        self._read = read
        self._log = log
        self._resource = _resource(host)
        self._since_ns = time.time_ns()
        self._interval_s = _interval_s(os.environ)
        self._exporter = OTLPMetricExporter(endpoint=endpoint)
        _Exports("metrics", log).watch(self._exporter, lambda _: 1)
        self._ending = threading.Event()
        self._sender: threading.Thread | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._sender = threading.Thread(target=self._send_until_end, args=(loop,), name="metrics", daemon=True)
        self._sender.start()

    async def close(self) -> None:
        self._ending.set()
        if self._sender is not None:
            await _end("metrics", self._sender.join)

    def _send_until_end(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._ending.wait(self._interval_s):
            self._send(loop)
        self._send(loop)
        self._exporter.shutdown()

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raise nothing, because that would end the thread. If the loop is busy or gone, the next export has the figures."""
        try:
            figures = asyncio.run_coroutine_threadsafe(_wait_for(self._read), loop).result(READ_TIMEOUT_S)
            self._exporter.export(self._encoded(figures))
        except (RuntimeError, TimeoutError):
            return
        except Exception as error:
            self._log.warning("metrics cannot be read", error=f"{type(error).__name__}: {error}")

    def _encoded(self, figures: Sequence[Figure]) -> MetricsData:
        now_ns = time.time_ns()
        metrics = [_metric(figure, self._since_ns, now_ns) for figure in figures if figure.points]
        scope = InstrumentationScope("leasehold", own_version(), SCHEMA_URL)
        scoped = ScopeMetrics(scope=scope, metrics=metrics, schema_url=SCHEMA_URL)
        return MetricsData([ResourceMetrics(self._resource, [scoped], schema_url="")])


def _interval_s(environ: Mapping[str, str]) -> float:
    """Raises ValueError."""
    text = environ.get(OTEL_METRIC_EXPORT_INTERVAL, "").strip() or "60000"
    with suppress(ValueError):
        if 0 < (milliseconds := float(text)) < threading.TIMEOUT_MAX:
            return milliseconds / 1000
    raise ValueError(f"{OTEL_METRIC_EXPORT_INTERVAL} is '{text}': set it to milliseconds, such as 60000")


async def _wait_for(read: Callable[[], Awaitable[list[Figure]]]) -> list[Figure]:
    return await read()


def _metric(figure: Figure, since_ns: int, now_ns: int) -> Metric:
    cumulative = AggregationTemporality.CUMULATIVE
    data: Sum | Gauge | MetricHistogram
    if figure.kind == "histogram":
        data = MetricHistogram([_histogram(each, since_ns, now_ns) for each in figure.points], cumulative)
    else:
        points = [NumberDataPoint(dict(each.attributes), since_ns, now_ns, float(each.value)) for each in figure.points]
        data = Gauge(points) if figure.kind == "gauge" else Sum(points, cumulative, is_monotonic=True)
    return Metric(figure.name, figure.description, figure.unit, data)


def _histogram(point: Point, since_ns: int, now_ns: int) -> HistogramDataPoint:
    return HistogramDataPoint(
        attributes=dict(point.attributes),
        start_time_unix_nano=since_ns,
        time_unix_nano=now_ns,
        count=sum(point.counts),
        sum=point.value,
        bucket_counts=point.counts,
        explicit_bounds=point.bounds,
        min=None,  # type: ignore[arg-type]  # optional on the wire
        max=None,  # type: ignore[arg-type]  # optional on the wire
    )


class OtlpLogs:
    """Sends the lines of the log. endpoint: as for OtlpTraces. Raises ValueError if a variable cannot be read."""

    def __init__(self, endpoint: str | None, *, host: str, log: Log, level: str) -> None:
        exporter = OTLPLogExporter(endpoint=endpoint)
        self._exports = _Exports("logs", log)
        self._exports.watch(exporter, len)
        self._provider = LoggerProvider(resource=_resource(host), shutdown_on_exit=False)
        self._provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
        self._logger = self._provider.get_logger("leasehold", own_version(), schema_url=SCHEMA_URL)
        self._handler = FieldsHandler(host, self._send, level)

    def start(self) -> None:
        logging.getLogger().addHandler(self._handler)

    async def close(self) -> None:
        logging.getLogger().removeHandler(self._handler)
        await _end("logs", self._provider.shutdown)

    def _send(self, fields: Mapping[str, Any], time_s: float) -> None:
        if _Exports.is_here() or str(fields.get("logger", "")).startswith("opentelemetry"):
            return
        given = {name: value for name, value in fields.items() if name not in ("time", "level", "host", "event")}
        context = _context_in(given)
        if (trace := given.pop("exception", None)) is not None:
            given["exception.stacktrace"] = trace
        level = str(fields["level"])
        self._logger.emit(
            timestamp=_ns(time_s),
            observed_timestamp=time.time_ns(),
            context=context,
            severity_number=_SEVERITIES.get(level, SeverityNumber.UNSPECIFIED),
            severity_text=level.upper(),
            body=str(fields["event"]),
            attributes={name: value for name, value in given.items() if value is not None},
        )


def _context_in(fields: dict[str, Any]) -> Context:
    """The context of the trace that the fields name. Those fields are removed."""
    trace_id, span_id = fields.pop("trace_id", None), fields.pop("span_id", None)
    if trace_id is None or span_id is None:
        return Context()
    found = SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)
    )
    return set_span_in_context(NonRecordingSpan(found), Context())
