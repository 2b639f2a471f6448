"""Figures for OTLP: what a host has counted, under the names of the conventions. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from leasehold.pipeline.histogram import BUCKETS_S, Histogram
from leasehold.service.host import Host
from leasehold.service.stats import Stage
from leasehold.service.telemetry.conventions import Operation, Value, delivery, messaging

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Figures = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a metric, and its attributes."""

    attributes: Mapping[str, Value]
    value: float = 0.0
    counts: tuple[int, ...] = ()
    """For a histogram: how many values are in each bucket of `bounds`, and beyond the last; `value` is the sum."""
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
    """A metric of /metrics, under its name there without `_total`, which Prometheus adds to what it gets by OTLP."""
    kind: Figures = "counter" if family.type == "counter" else "histogram" if family.type == "histogram" else "gauge"
    points = _histograms(family) if kind == "histogram" else _numbers(family, "_total" if kind == "counter" else "")
    unit = UNITS.get(family.name.rpartition("_")[2], "")
    return Figure(family.name, kind, unit, family.documentation, tuple(points))


def _numbers(family: Metric, suffix: str) -> Iterator[Point]:
    for sample in family.samples:
        if sample.name == family.name + suffix:
            yield Point(sample.labels, sample.value)


def _histograms(family: Metric) -> Iterator[Point]:
    """Prometheus counts all values up to a bound, and OTLP those between two bounds."""
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
