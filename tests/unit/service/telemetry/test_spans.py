"""What a host tells traces of, and who asks for them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import pytest
import structlog
from structlog.testing import capture_logs

from leasehold.common.clock import BootClock
from leases.errors import StoreUnavailable
from leases.lease import Lease
from leases.timing import derived_timing
from pipeline.errors import SinkUnavailable
from pipeline.pump.runner import DeliveredBatch
from service.config.settings import TelemetrySettings
from service.errors import StartFailed
from service.telemetry.spans import TEXT_MAX, Span, TracedStats, lacking, traces_of, with_path

LEASE = Lease(pipeline="bank", partition="7", owner="host-a", incarnation="1", epoch=4, continuation="90")
BEFORE = Lease(pipeline="bank", partition="7", epoch=3, continuation="90")


@dataclass(frozen=True, slots=True)
class Noted:
    span: Span
    within: Noted | None
    after: Noted | None


@dataclass(slots=True)
class Notebook:
    """Traces that are written down. A span is known by what was noted of it."""

    notes: list[Noted] = field(default_factory=list)
    made: int = 0
    exported: int = 0

    def send(self, span: Span, *, within: Noted | None = None, after: Noted | None = None) -> Noted:
        self.notes.append(noted := Noted(span, within, after))
        self.made += 1
        return noted

    async def close(self) -> None: ...

    def named(self, name: str) -> list[Noted]:
        return [noted for noted in self.notes if noted.span.name == name]


@pytest.fixture
def book() -> Notebook:
    return Notebook()


@pytest.fixture
def stats(clock: BootClock, book: Notebook) -> TracedStats:
    return TracedStats(clock, book)


def delivered(start: str = "90", to: str = "97") -> DeliveredBatch:
    return DeliveredBatch(start=start, to=to, events=7, waited_s=1.0, transform_s=2.0, queued_s=3.0, deliver_s=4.0)


# A host


async def test_a_host_tells_of_acquisition_batch_checkpoint_and_release(start, eventually, book: Notebook) -> None:
    running = await start(partitions=["a"], traces=book)
    running.feeds["bank"].append("a", [b"{}"] * 3)
    await eventually(lambda: book.named("checkpoint"))
    running.host.stop()
    await eventually(lambda: book.named("release"))
    (acquire,), (batch,) = book.named("acquire"), book.named("batch")
    assert [part.name for part in batch.span.parts] == ["read", "transform", "queue", "deliver"]
    assert book.named("checkpoint")[0].within is batch
    assert batch.after is acquire is book.named("release")[0].after
    for noted in book.notes:
        assert noted.span.attributes["leasehold.partition"] == "a"
        assert noted.span.attributes["leasehold.epoch"] == 1


async def test_a_handoff_is_told_by_both_hosts_and_renewals_are(start, eventually, book: Notebook) -> None:
    theirs = Notebook()
    without_sessions = derived_timing(2.0, renew_s=0.3, balance_s=0.2, sessions=False)
    first = await start("host-a", traces=book, timing=without_sessions)
    await start("host-b", feeds=first.feeds, traces=theirs, timing=without_sessions)
    await eventually(lambda: theirs.named("handoff") and book.named("handoff") and book.named("renew"))
    given, asked = book.named("handoff")[0], theirs.named("handoff")[0]
    assert given.span.attributes["leasehold.to"] == "host-b"
    assert (given.span.attributes["leasehold.side"], asked.span.attributes["leasehold.side"]) == ("owner", "taker")
    assert given.span.attributes["leasehold.partition"] == asked.span.attributes["leasehold.partition"]
    assert asked in [acquired.within for acquired in theirs.named("acquire")]


# Spans


def test_stages_follow_each_other_up_to_the_moment_of_delivery(stats: TracedStats, book: Notebook) -> None:
    stats.record_batch(LEASE, delivered())
    (batch,) = book.named("batch")
    times = [(part.name, part.ended_s_ago + part.took_s, part.ended_s_ago) for part in batch.span.parts]
    assert times == [("read", 10, 9), ("transform", 9, 7), ("queue", 7, 4), ("deliver", 4, 0)]
    assert (batch.span.took_s, batch.span.ended_s_ago) == (10, 0)
    assert batch.span.attributes == {
        "leasehold.pipeline": "bank",
        "leasehold.partition": "7",
        "leasehold.epoch": 4,
        "leasehold.generation": 0,
        "leasehold.from": "90",
        "leasehold.to": "97",
        "leasehold.events": 7,
        "leasehold.dead_letters": 0,
    }


def test_what_failed_says_why_and_from_where_it_goes_on(stats: TracedStats, book: Notebook) -> None:
    stats.record_acquisition(LEASE, before=BEFORE, took_s=0.1)
    stats.record_work_failure(LEASE, "90", SinkUnavailable("postgresql://ada:hunter2@db is away"))
    stats.record_renewal(LEASE, 0.1, StoreUnavailable("throttled"))
    stats.record_suspension(LEASE)
    (batch,), (renew,), (suspend,) = book.named("batch"), book.named("renew"), book.named("suspend")
    assert batch.span.error == "SinkUnavailable: postgresql://ada:***@db is away"
    assert batch.span.attributes["leasehold.from"] == "90"
    assert renew.span.error == "StoreUnavailable: throttled"
    assert suspend.span.error
    assert batch.after is renew.after is suspend.after is book.named("acquire")[0]


def test_long_texts_are_cut(stats: TracedStats, book: Notebook) -> None:
    stats.record_batch(LEASE, delivered(to="9" * 10_000))
    assert len(str(book.notes[0].span.attributes["leasehold.to"])) == TEXT_MAX


def test_nothing_of_the_events_is_told(stats: TracedStats, book: Notebook) -> None:
    stats.record_batch(LEASE, delivered())
    assert "hunter2" not in repr(book.notes)


def test_what_is_kept_of_a_lease_goes_with_it(stats: TracedStats) -> None:
    stats.record_lease_request(BEFORE)
    stats.record_acquisition(LEASE, before=BEFORE, took_s=0.1)
    stats.record_handoff_request(LEASE)
    stats.record_batch(LEASE, delivered())
    stats.record_release(LEASE, "shutdown")
    stats.record_batch(LEASE, delivered())
    assert (stats._tenures, stats._asked_at) == ({}, {})


def test_traced_stats_count_as_any_others(stats: TracedStats, book: Notebook) -> None:
    stats.record_acquisition(LEASE, before=BEFORE, took_s=0.1)
    stats.record_batch(LEASE, delivered())
    stats.record_checkpoint(LEASE, 0.1)
    stats.record_suspension(LEASE)
    stats.record_work_failure(LEASE, None, SinkUnavailable("away"))
    stats.record_release(LEASE, "stolen")
    assert (stats.events["bank"], stats.batches["bank"], stats.suspensions["bank"]) == (7, 1, 1)
    assert stats.moves == {("bank", "acquired"): 1, ("bank", "stolen"): 1}
    assert stats.retries == {("bank", "sink"): 1}
    assert stats.seconds["bank", "checkpoint"].cumulative[-1] == 1
    assert stats.spans_made == book.made == 6


# Who asks


def asked(environ: dict[str, str], settings: TelemetrySettings | None = None) -> object:
    return traces_of(settings or TelemetrySettings(), environ, host="host-a", log=structlog.get_logger())


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_SERVICE_NAME": "bank"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_SDK_DISABLED": "TRUE"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_nobody_asks_and_nothing_is_traced(environ: dict[str, str]) -> None:
    with capture_logs() as said:
        assert asked(environ) is None
    assert said == []


def test_a_protocol_that_we_do_not_speak_is_told_and_work_goes_on() -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with capture_logs() as said:
        assert asked(environ) is None
    (line,) = said
    assert line["why"].startswith("OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc': set it to http/protobuf")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the extra."""
    monkeypatch.delitem(sys.modules, "service.telemetry.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)


@pytest.mark.usefixtures("bare")
def test_without_the_extra_settings_that_ask_are_an_error_that_says_what_to_do() -> None:
    settings = TelemetrySettings(traces="http://collector:4318")
    with pytest.raises(StartFailed, match="pip install 'opentelemetry-exporter-otlp-proto-http>=") as error:
        asked({}, settings)
    assert lacking(settings) == [str(error.value)]
    assert lacking(TelemetrySettings()) == []


@pytest.mark.usefixtures("bare")
def test_without_the_extra_variables_that_ask_are_told_and_work_goes_on() -> None:
    with capture_logs() as said:
        assert asked({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}) is None
    (line,) = said
    assert "pip install 'opentelemetry-exporter-otlp-proto-http>=" in line["why"]


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://example.com/otlp/v1/traces", "https://example.com/otlp/v1/traces"),
    ],
)
def test_a_collector_s_address_alone_stands_for_otlp_s_path(given: str, full: str) -> None:
    assert with_path(given) == full


@pytest.mark.parametrize(
    "value", ["collector:4318", "ftp://x", "http://", "http://a:b@x", "http://x?key=1", "http://x:0"]
)
def test_an_endpoint_that_is_none_or_holds_a_secret_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="must be an address like http://collector:4318"):
        TelemetrySettings(traces=value)
