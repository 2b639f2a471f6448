"""Names and attributes of OpenTelemetry's semantic conventions, for spans and metrics. Pure.

Messaging, in development: https://opentelemetry.io/docs/specs/semconv/messaging/. Databases, stable:
https://opentelemetry.io/docs/specs/semconv/database/. Which version, and what of it is optional, is decided in
docs/decisions/0027-telemetry-follows-the-conventions.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from leasehold.pipeline.histogram import BUCKETS_S, Histogram
from leasehold.pipeline.tracing import Endpoint
from leasehold.service.host import Host
from leasehold.service.stats import Stage

SCHEMA_URL = "https://opentelemetry.io/schemas/1.43.0"
"""The version that these names are of."""

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Value = str | int | float | bool
Kind = Literal["internal", "client", "producer", "consumer"]
KINDS: Mapping[str, Kind] = {"receive": "client", "process": "consumer", "send": "producer", "settle": "client"}
"""The kind of a span, by its messaging.operation.type."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What a span or a metric is about. name: of the span."""

    name: str
    kind: Kind
    attributes: Mapping[str, Value]


def messaging(
    endpoint: Endpoint, name: str, type: str, *, pipeline: str | None = None, partition: str | None = None
) -> Operation:
    """An operation on messages. pipeline: of a consumer; its name is the group of a source that has none."""
    group = None if pipeline is None else endpoint.group or pipeline
    return Operation(
        f"{name} {endpoint.name}",
        KINDS[type],
        _given(
            {
                "messaging.system": endpoint.system,
                "messaging.operation.name": name,
                "messaging.operation.type": type,
                "messaging.destination.name": endpoint.name,
                "messaging.destination.partition.id": partition,
                "messaging.consumer.group.name": group,
                **_server(endpoint),
            }
        ),
    )


def delivery(endpoint: Endpoint, partition: str | None = None) -> Operation:
    """The delivery of one batch's output to a sink."""
    if endpoint.kind == "messaging":
        return messaging(endpoint, "send", "send", partition=partition)
    if endpoint.kind == "database":
        attributes = {
            "db.system.name": endpoint.system,
            "db.operation.name": "COMMIT" if endpoint.system == "postgresql" else "write",
            "db.namespace": endpoint.namespace,
            "db.collection.name": endpoint.collection,
            **_server(endpoint),
        }
        return Operation(f"{attributes['db.operation.name']} {endpoint.name}", "client", _given(attributes))
    kind: Kind = "internal" if endpoint.server is None else "client"
    return Operation(f"deliver {endpoint.name}", kind, _given(_server(endpoint)))


def error_type(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _server(endpoint: Endpoint) -> dict[str, Value | None]:
    return {"server.address": endpoint.server, "server.port": endpoint.port if endpoint.server else None}


def _given(attributes: Mapping[str, Value | None]) -> dict[str, Value]:
    return {name: value for name, value in attributes.items() if value is not None}


# Figures for OTLP: what a host has counted, under the names of the conventions.


Figures = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Point:
    """One figure of a metric, and what it is of."""

    attributes: Mapping[str, Value]
    value: float = 0.0
    counts: tuple[int, ...] = ()
    """For a histogram: how many up to each of `bounds`, and beyond the last; `value` is the sum."""
    bounds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric with all of its points."""

    name: str
    kind: Figures
    unit: str
    description: str
    points: tuple[Point, ...]


UNITS: Mapping[str, str] = {"seconds": "s", "bytes": "By"}


def figure_of(family: Metric) -> Figure:
    """A metric of /metrics, under its name there without `_total`, as Prometheus names what it gets by OTLP."""
    kind: Figures = "counter" if family.type == "counter" else "histogram" if family.type == "histogram" else "gauge"
    points = _histograms(family) if kind == "histogram" else _numbers(family, "_total" if kind == "counter" else "")
    unit = UNITS.get(family.name.rpartition("_")[2], "")
    return Figure(family.name, kind, unit, family.documentation, tuple(points))


def _numbers(family: Metric, suffix: str) -> Iterator[Point]:
    for sample in family.samples:
        if sample.name == family.name + suffix:
            yield Point(sample.labels, sample.value)


def _histograms(family: Metric) -> Iterator[Point]:
    """Prometheus counts what is at most so large, and OTLP what lies between two bounds."""
    cumulative: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for sample in family.samples:
        if sample.name == f"{family.name}_bucket":
            labels = {name: value for name, value in sample.labels.items() if name != "le"}
            cumulative.setdefault((*labels.items(),), {})[sample.labels["le"]] = sample.value
    sums = {(*each.labels.items(),): each.value for each in family.samples if each.name == f"{family.name}_sum"}
    for key, buckets in cumulative.items():
        counts = [int(value) for value in buckets.values()]
        between = tuple(count - before for before, count in zip([0, *counts], counts, strict=False))
        bounds = tuple(float(bound) for bound in buckets if bound != "+Inf")
        yield Point(dict(key), sums[key], between, bounds)


def figures_of(host: Host) -> Iterator[Figure]:
    """The conventions' own metrics. They count what has become safe, like those of /metrics."""
    stats = host.stats
    consumed, sent, processed, operations, calls = [], [], [], [], []
    for name, pipeline in host.pipelines.items():
        source, sink = pipeline.feed.endpoint, pipeline.sink.endpoint
        process, deliver = messaging(source, "process", "process", pipeline=name), delivery(sink)
        consumed.append(Point(process.attributes, stats.events[name]))
        processed.append(_point(process, stats.processing_seconds[name]))
        settle = messaging(source, "checkpoint", "settle", pipeline=name)
        operations.append(_point(settle, stats.seconds[name, "checkpoint"]))
        took: Stage = "deliver"
        if sink.kind == "messaging":
            sent.append(Point(deliver.attributes, stats.rows[name]))
            operations.append(_point(deliver, stats.seconds[name, took]))
        elif sink.kind == "database":
            calls.append(_point(deliver, stats.seconds[name, took]))
    for figure in (
        Figure(
            "messaging.client.consumed.messages", "counter", "{message}", "Events whose output is safe.", (*consumed,)
        ),
        Figure("messaging.client.sent.messages", "counter", "{message}", "Events published.", (*sent,)),
        Figure("messaging.process.duration", "histogram", "s", "Time from transform to safe output.", (*processed,)),
        Figure("messaging.client.operation.duration", "histogram", "s", "Time of one call.", (*operations,)),
        Figure("db.client.operation.duration", "histogram", "s", "Time of one delivery.", (*calls,)),
    ):
        if figure.points:
            yield Figure(figure.name, figure.kind, figure.unit, figure.description, _merged(figure.points))


def _point(operation: Operation, histogram: Histogram) -> Point:
    return Point(operation.attributes, histogram.sum_s, tuple(histogram.counts), BUCKETS_S)


def _merged(points: tuple[Point, ...]) -> tuple[Point, ...]:
    """Two pipelines may have one destination: one point for each set of attributes."""
    merged: dict[tuple[tuple[str, Value], ...], Point] = {}
    for each in points:
        key = tuple(sorted(each.attributes.items()))
        if (before := merged.get(key)) is not None:
            counts = tuple(map(sum, zip(before.counts, each.counts, strict=True)))
            each = Point(each.attributes, before.value + each.value, counts, each.bounds)
        merged[key] = each
    return tuple(merged.values())
