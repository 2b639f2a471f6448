"""A collector of OTLP over HTTP, in a thread of the test: it takes traces, metrics and logs, and keeps what it was sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

MESSAGES: dict[str, Any] = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}


class Collector:
    """status: what it answers. answers: cleared while it answers nothing."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.refused = 0
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
                    collector.requests.append(MESSAGES[self.path].FromString(body))
                else:
                    collector.refused += 1
                self.send_response(collector.status)
                self.end_headers()

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    @property
    def spans(self) -> list[Span]:
        found = [each for each in list(self.requests) if isinstance(each, ExportTraceServiceRequest)]
        scopes = [scope for each in found for resource in each.resource_spans for scope in resource.scope_spans]
        return [span for scope in scopes for span in scope.spans]

    @property
    def metrics(self) -> dict[str, Metric]:
        """As they were sent last, by name."""
        found = [each for each in list(self.requests) if isinstance(each, ExportMetricsServiceRequest)]
        scopes = [scope for each in found for resource in each.resource_metrics for scope in resource.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    @property
    def logs(self) -> list[LogRecord]:
        found = [each for each in list(self.requests) if isinstance(each, ExportLogsServiceRequest)]
        scopes = [scope for each in found for resource in each.resource_logs for scope in resource.scope_logs]
        return [record for scope in scopes for record in scope.log_records]

    @property
    def resource(self) -> dict[str, Any]:
        return attributes(next(iter(self.requests[0].ListFields()[0][1])).resource)


def attributes(of: Any) -> dict[str, Any]:
    """Of a resource, a span, a link, a point or a log record."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in of.attributes}


@contextmanager
def serving() -> Iterator[Collector]:
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
