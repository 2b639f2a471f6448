"""What OpenTelemetry's semantic conventions ask of spans and metrics, to hold those on the wire to.

Names and values come from the package opentelemetry-semantic-conventions. Which are required, which kind a span has and how it
is named, the package does not know. These tables are from the conventions' pages, version 1.43:

- https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/ (span name, span kind, messaging attributes)
- https://opentelemetry.io/docs/specs/semconv/messaging/azure-messaging/ (Event Hubs)
- https://opentelemetry.io/docs/specs/semconv/messaging/messaging-metrics/
- https://opentelemetry.io/docs/specs/semconv/database/database-spans/, .../database/database-metrics/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from lab.servers.otlp import attributes
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.semconv._incubating.attributes import (
    db_attributes,
    error_attributes,
    messaging_attributes,
    server_attributes,
)
from opentelemetry.semconv._incubating.metrics import db_metrics, messaging_metrics

KINDS = {
    "create": Span.SPAN_KIND_PRODUCER,
    "send": Span.SPAN_KIND_PRODUCER,  # its context is that of the messages
    "receive": Span.SPAN_KIND_CLIENT,
    "process": Span.SPAN_KIND_CONSUMER,
    "settle": Span.SPAN_KIND_CLIENT,
}
REQUIRED = {
    "messaging": (
        "messaging.system",
        "messaging.operation.name",
        "messaging.operation.type",
        "messaging.destination.name",
    ),
    "db": ("db.system.name", "db.operation.name", "db.namespace"),
}
OF_CONSUMERS = ("receive", "process", "settle")
OF_BATCHES = ("receive", "process", "send")


def problems_of(span: Span) -> list[str]:
    """Why it is not as the conventions want it; nothing for a span that is about neither messages nor a database."""
    found = attributes(span)
    return [f"{span.name}: {problem}" for problem in (*_of_attributes(found), *_of_span(span, found))]


def problems_of_metric(metric: Metric) -> list[str]:
    """Of one whose name is in the conventions."""
    described = _metrics().get(metric.name)
    if described is None:
        return [f"{metric.name}: there is no metric of this name"]
    problems = []
    if metric.unit != described:
        problems.append(f"its unit is {metric.unit}, and should be {described}")
    for point in getattr(metric, str(metric.WhichOneof("data"))).data_points:
        found = attributes(point)
        group = "db" if metric.name.startswith("db.") else "messaging"
        required = ("db.system.name",) if group == "db" else ("messaging.system", "messaging.operation.name")
        problems += [f"{name} is missing" for name in required if name not in found]
        problems += _of_attributes(found)
    return [f"{metric.name}: {problem}" for problem in problems]


def _of_attributes(found: Mapping[str, Any]) -> Iterator[str]:
    known = {name for module in MODULES for name in _texts(module)}
    for name, value in found.items():
        if not name.startswith("leasehold.") and name not in known:
            yield f"{name} is not an attribute of the conventions"
        if name in VALUES and value not in VALUES[name]:
            yield f"{name} is '{value}', which is no value of it"


def _of_span(span: Span, found: Mapping[str, Any]) -> Iterator[str]:
    groups = [name for name, required in REQUIRED.items() if required[0] in found]
    if not groups:
        return
    yield from (f"{name} is missing" for name in REQUIRED[groups[0]] if name not in found)
    has_failed = span.status.code == Status.STATUS_CODE_ERROR
    if has_failed != ("error.type" in found):
        yield "error.type is there if and only if it failed"
    if groups == ["db"]:
        target = found.get("db.collection.name", found.get("db.namespace"))
        name, kind = f"{found.get('db.operation.name')} {target}", Span.SPAN_KIND_CLIENT
    else:
        operation = str(found.get("messaging.operation.type"))
        name = f"{found.get('messaging.operation.name')} {found.get('messaging.destination.name')}"
        kind = KINDS.get(operation, Span.SPAN_KIND_UNSPECIFIED)
        if operation in OF_CONSUMERS and "messaging.consumer.group.name" not in found:
            yield "messaging.consumer.group.name is missing"
        if operation in OF_BATCHES and "messaging.batch.message_count" not in found and not has_failed:
            yield "messaging.batch.message_count is missing"
    if span.name != name:
        yield f"its name should be '{name}'"
    if span.kind != kind:
        yield f"its kind is {span.kind}, and should be {kind}"


def _texts(module: ModuleType) -> set[str]:
    return {value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}


def _values(enumeration: Any) -> set[str]:
    return {each.value for each in enumeration}


def _metrics() -> dict[str, str]:
    """Name -> unit. The package has a function for each, which makes the instrument."""
    found = {}

    class Meter:
        def __getattr__(self, _: str) -> Any:
            return lambda *, name, description, unit, **more: found.update({name: unit})

    for module in (messaging_metrics, db_metrics):
        for name, create in vars(module).items():
            if name.startswith(("create_messaging_", "create_db_client_operation_duration")):
                create(Meter())
    return found


MODULES = (messaging_attributes, db_attributes, error_attributes, server_attributes)
VALUES = {
    "messaging.operation.type": _values(messaging_attributes.MessagingOperationTypeValues) - {"deliver", "publish"},
    "db.system.name": _values(db_attributes.DbSystemNameValues),
}
"""Values that a list limits, without those that it deprecates. Systems of messages may have names of their own."""
