"""Metrics on the wire, as a collector sees them."""

from __future__ import annotations

import time

import pytest
import structlog
from lab.servers.conventions import problems_of_metric
from lab.servers.otlp import Collector, attributes
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from patience import PATIENCE_S, until_async
from structlog.testing import capture_logs

from leasehold.service.config.telemetry import TelemetrySettings
from leasehold.service.errors import StartFailed
from leasehold.service.telemetry.figures import Figure, Point, figures_of
from leasehold.service.telemetry.signals import Exporter, metrics_of

FIGURES = [
    Figure("leasehold_events_delivered", "counter", "", "Events.", (Point({"pipeline": "bank"}, 7.0),)),
    Figure("leasehold_buffer_bytes", "gauge", "By", "Held.", (Point({}, 3.0),)),
    Figure(
        "leasehold_batch_seconds", "histogram", "s", "Time.", (Point({"stage": "wait"}, 6.5, (1, 0, 2), (0.1, 1.0)),)
    ),
]


def metrics_to(url: str, figures: list[Figure]) -> Exporter:
    async def read() -> list[Figure]:
        return figures

    log = structlog.get_logger()
    made = metrics_of(TelemetrySettings(metrics=url), {}, host="host-a", log=log, read=read)
    assert made is not None
    return made


@pytest.mark.usefixtures("environ")
async def test_figures_arrive_as_they_are(collector: Collector) -> None:
    began_ns = time.time_ns()
    metrics = metrics_to(collector.url, [*FIGURES, Figure("leasehold_nothing", "counter", "", "No series yet.", ())])
    metrics.start()
    await until_async(lambda: collector.metrics)
    await metrics.close()
    found = collector.metrics
    assert found.keys() == {figure.name for figure in FIGURES}
    counter, gauge, histogram = (found[figure.name] for figure in FIGURES)
    assert counter.sum.is_monotonic
    assert counter.sum.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    (point,) = counter.sum.data_points
    assert (point.as_double, attributes(point)) == (7.0, {"pipeline": "bank"})
    assert began_ns <= point.start_time_unix_nano <= point.time_unix_nano <= time.time_ns()
    assert (gauge.gauge.data_points[0].as_double, gauge.unit, gauge.description) == (3.0, "By", "Held.")
    (spread,) = histogram.histogram.data_points
    assert (spread.count, spread.sum, [*spread.bucket_counts], [*spread.explicit_bounds]) == (
        3,
        6.5,
        [1, 0, 2],
        [0.1, 1.0],
    )
    assert not any(map(spread.HasField, ("min", "max"))), "these are not counted"
    assert collector.resource["service.instance.id"] == "host-a"


@pytest.mark.usefixtures("environ")
async def test_the_last_figures_are_sent_at_the_end(environ, collector: Collector) -> None:
    environ.setenv("OTEL_METRIC_EXPORT_INTERVAL", "600000")
    figures = FIGURES[:1]
    metrics = metrics_to(collector.url, figures)
    metrics.start()
    figures[:] = FIGURES[1:2]
    await metrics.close()
    assert collector.metrics.keys() == {"leasehold_buffer_bytes"}


@pytest.mark.usefixtures("environ")
async def test_a_reading_that_fails_is_reported_and_the_next_is_sent(collector: Collector) -> None:
    readings = [ValueError("a fault"), FIGURES]

    async def read() -> list[Figure]:
        reading = readings.pop(0) if len(readings) > 1 else FIGURES
        if isinstance(reading, Exception):
            raise reading
        return reading

    with capture_logs() as said:
        log = structlog.get_logger()
        metrics = metrics_of(TelemetrySettings(metrics=collector.url), {}, host="host-a", log=log, read=read)
        assert metrics is not None
        metrics.start()
        await until_async(lambda: collector.metrics)
        await metrics.close()
    assert [(line["event"], line["error"]) for line in said] == [("metrics cannot be read", "ValueError: a fault")]


@pytest.mark.usefixtures("environ")
async def test_the_metrics_of_the_conventions_are_as_these_want_them(start, collector: Collector) -> None:
    running = await start(partitions=["a"])
    running.feeds["bank"].append("a", [b"{}"] * 3)
    await until_async(lambda: running.host.stats.events["bank"] == 3)
    metrics = metrics_to(collector.url, [*figures_of(running.host)])
    metrics.start()
    await until_async(lambda: collector.metrics)
    await metrics.close()
    assert "messaging.client.consumed.messages" in collector.metrics
    assert [problem for each in collector.metrics.values() for problem in problems_of_metric(each)] == []


@pytest.mark.usefixtures("environ")
async def test_a_collector_that_is_away_is_reported_once(collector: Collector) -> None:
    collector.status = 400
    with capture_logs() as said:
        metrics = metrics_to(collector.url, FIGURES)
        metrics.start()
        await until_async(lambda: collector.refused > 2)
        collector.status = 200
        await until_async(lambda: collector.metrics)
        await metrics.close()
    about_metrics = [line["event"] for line in said if "metrics" in line["event"]]  # other tests' traces may end late
    assert about_metrics == ["cannot export metrics", "exporting metrics again"]


@pytest.mark.parametrize("interval", ["soon", "0", "nan", "inf"])
async def test_an_interval_that_cannot_be_used_ends_the_start(environ, collector: Collector, interval: str) -> None:
    environ.setenv("OTEL_METRIC_EXPORT_INTERVAL", interval)
    with pytest.raises(StartFailed, match=f"OTEL_METRIC_EXPORT_INTERVAL is '{interval}': set it to milliseconds"):
        metrics_to(collector.url, FIGURES)


async def test_a_collector_that_hangs_does_not_hold_up_the_end(environ, collector: Collector) -> None:
    """An exporter that had given up would say so."""
    for limit in ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_METRIC_EXPORT_TIMEOUT"):
        environ.setenv(limit, str(int(PATIENCE_S) * (1000 if limit.startswith("OTEL_METRIC") else 1)))
    collector.answers.clear()
    with capture_logs() as said:
        metrics = metrics_to(collector.url, FIGURES)
        metrics.start()
        await metrics.close()
        assert said == []
