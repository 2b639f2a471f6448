"""Attributes and metrics, held to the published conventions."""

from __future__ import annotations

import asyncio

import pytest
from lab.servers.conventions import MODULES, VALUES
from opentelemetry.semconv._incubating.attributes import db_attributes, messaging_attributes
from opentelemetry.semconv.schemas import Schemas
from patience import until_async
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from leasehold.pipeline.connectors.http import http_sink
from leasehold.pipeline.connectors.log import LogOutputSink
from leasehold.pipeline.connectors.postgres import PostgresOutputSink
from leasehold.pipeline.connectors.postgres.session import endpoint_of
from leasehold.pipeline.endpoint import Endpoint
from leasehold.pipeline.errors import SinkUnavailable
from leasehold.service.api.metrics import Metrics
from leasehold.service.telemetry.conventions import SCHEMA_URL, delivery, error_type, messaging
from leasehold.service.telemetry.figures import Figure, Point, figure_of, figures_of

HUB = Endpoint(system="eventhubs", name="orders", server="ns.example", port=5671, group="$Default")


def test_an_operation_on_messages_has_the_names_of_the_conventions() -> None:
    process = messaging(HUB, "process", "process", pipeline="bank", partition="7")
    assert (process.name, process.kind) == ("process orders", "consumer")
    assert process.attributes == {
        messaging_attributes.MESSAGING_SYSTEM: messaging_attributes.MessagingSystemValues.EVENTHUBS.value,
        messaging_attributes.MESSAGING_OPERATION_NAME: "process",
        messaging_attributes.MESSAGING_OPERATION_TYPE: "process",
        messaging_attributes.MESSAGING_DESTINATION_NAME: "orders",
        messaging_attributes.MESSAGING_DESTINATION_PARTITION_ID: "7",
        messaging_attributes.MESSAGING_CONSUMER_GROUP_NAME: "$Default",
        "server.address": "ns.example",
        "server.port": 5671,
    }


def test_a_source_without_consumer_groups_has_that_of_the_pipeline() -> None:
    source = Endpoint(system="log", name="/var/bank")
    attributes = messaging(source, "receive", "receive", pipeline="bank").attributes
    assert attributes["messaging.consumer.group.name"] == "bank"
    assert "server.address" not in attributes


@pytest.mark.parametrize(
    ("endpoint", "name", "kind"),
    [
        (HUB, "send orders", "producer"),
        (endpoint_of("db:5432/bank", "balances"), "COMMIT balances", "client"),
        (endpoint_of("db:5432/bank", None), "COMMIT bank", "client"),
        (Endpoint(kind="other", system="http", name="https://x/in", server="x"), "deliver https://x/in", "client"),
        (Endpoint(kind="other", system="files", name="/out"), "deliver /out", "internal"),
    ],
)
def test_a_delivery_is_named_by_what_its_destination_is(endpoint: Endpoint, name: str, kind: str) -> None:
    operation = delivery(endpoint, "7")
    assert (operation.name, operation.kind) == (name, kind)
    known = {value for module in MODULES for value in vars(module).values() if isinstance(value, str)}
    assert operation.attributes.keys() <= known
    for attribute, values in VALUES.items():
        assert operation.attributes.get(attribute) in (None, *values)


def test_a_commit_names_its_database() -> None:
    commit = delivery(endpoint_of("db:5433/bank", "public.balances"))
    assert commit.attributes == {
        db_attributes.DB_SYSTEM_NAME: db_attributes.DbSystemNameValues.POSTGRESQL.value,
        db_attributes.DB_OPERATION_NAME: "COMMIT",
        db_attributes.DB_NAMESPACE: "bank",
        db_attributes.DB_COLLECTION_NAME: "public.balances",
        "server.address": "db",
        "server.port": 5433,
    }


@pytest.mark.parametrize("address", ["a,b:5432,5433/bank", "service bank"])
def test_several_hosts_or_a_service_are_no_server(address: str) -> None:
    assert "server.address" not in delivery(endpoint_of(address, "balances")).attributes


async def test_sinks_say_what_they_are(tmp_path) -> None:
    log, database = (
        LogOutputSink(tmp_path / "out"),
        PostgresOutputSink("postgresql://ada:hunter2@db:5433/bank", table="balances"),
    )
    web = http_sink("https://ada.example:8443/in?sig=hunter2")
    assert delivery(log.endpoint).name == f"send {tmp_path / 'out'}"
    assert delivery(database.endpoint).attributes["server.address"] == "db"
    assert delivery(web.endpoint).attributes == {"server.address": "ada.example", "server.port": 8443}
    assert "hunter2" not in repr((log.endpoint, database.endpoint, web.endpoint))
    await asyncio.gather(log.close(), database.close(), web.close())


def test_the_schema_is_a_published_one() -> None:
    assert SCHEMA_URL in {each.value for each in Schemas}


def test_an_error_s_type_is_its_class() -> None:
    assert error_type(SinkUnavailable("away")) == "leasehold.pipeline.errors.SinkUnavailable"
    assert error_type(ValueError()) == "ValueError"


# Figures


def families_of(registry: CollectorRegistry) -> dict[str, Figure]:
    return {family.name: figure_of(family) for family in registry.collect()}


def test_counters_gauges_and_histograms_keep_their_figures() -> None:
    registry = CollectorRegistry()
    Counter("leasehold_events", "Events.", ["pipeline"], registry=registry).labels("bank").inc(7)
    Gauge("leasehold_buffer_bytes", "Held.", registry=registry).set(3)
    seconds = Histogram("leasehold_batch_seconds", "Time.", ["stage"], buckets=(0.1, 1.0), registry=registry)
    for each in (0.05, 0.5, 0.6, 5.0):
        seconds.labels("wait").observe(each)
    found = families_of(registry)
    assert found["leasehold_events"] == Figure(
        "leasehold_events", "counter", "", "Events.", (Point({"pipeline": "bank"}, 7.0),)
    )
    assert found["leasehold_buffer_bytes"] == Figure(
        "leasehold_buffer_bytes", "gauge", "By", "Held.", (Point({}, 3.0),)
    )
    histogram = found["leasehold_batch_seconds"]
    assert (histogram.kind, histogram.unit) == ("histogram", "s")
    assert histogram.points == (Point({"stage": "wait"}, 6.15, (1, 2, 1), (0.1, 1.0)),)


async def test_every_figure_of_metrics_is_sent_as_it_is(start) -> None:
    running = await start(partitions=["a"])
    running.feeds["bank"].append("a", [b"{}"] * 3)
    await until_async(lambda: running.host.stats.events["bank"] == 3)
    metrics = Metrics(running.host)
    text = {
        line.split(" ")[0]: float(line.rsplit(" ", 1)[1])
        for line in metrics.text().decode().splitlines()
        if line[0] != "#"
    }
    figures = {figure.name: figure for figure in map(figure_of, metrics.families())}
    assert figures["leasehold_events_delivered"].points == (Point({"pipeline": "bank"}, 3.0),)
    assert text['leasehold_events_delivered_total{pipeline="bank"}'] == 3.0
    for figure in figures.values():
        assert bool(figure.points) == any(name.startswith(figure.name) for name in text), figure.name
        if figure.kind == "histogram":
            for point in figure.points:
                labels = ",".join(f'{name}="{value}"' for name, value in point.attributes.items())
                assert sum(point.counts) == text[f"{figure.name}_count{{{labels}}}"]


async def test_the_conventions_metrics_count_what_metrics_counts(start) -> None:
    running = await start(partitions=["a"])
    running.feeds["bank"].append("a", [b"{}"] * 3)
    await until_async(lambda: running.host.stats.events["bank"] == 3)
    found = {figure.name: figure for figure in figures_of(running.host)}
    (consumed,), (processed,) = (
        found[name].points for name in ("messaging.client.consumed.messages", "messaging.process.duration")
    )
    assert consumed.value == 3.0
    assert consumed.attributes["messaging.operation.name"] == "process"
    assert sum(processed.counts) == running.host.stats.batches["bank"]
    assert "messaging.client.sent.messages" not in found, "its sink is no messaging system"


async def test_pipelines_with_one_destination_are_one_point(start) -> None:
    running = await start(partitions=["a"], runs=False)
    running.host.pipelines["copy"] = running.host.pipelines["bank"]
    stats = running.host.stats
    stats.events["bank"], stats.events["copy"] = 3, 4
    found = {figure.name: figure for figure in figures_of(running.host)}
    values = [point.value for point in found["messaging.client.consumed.messages"].points]
    assert values == [3.0, 4.0], "consumers differ by their group"
