"""What a host reports as spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from patience import until_async

from leasehold.leases.errors import StoreUnavailable
from leasehold.leases.lease import Lease
from leasehold.pipeline.endpoint import Endpoint
from leasehold.pipeline.errors import SinkUnavailable
from leasehold.pipeline.pump.run_parts import DeliveredBatch
from leasehold.pipeline.tracing import Contexts, TraceContext, TransformedBatch
from leasehold.service.telemetry.spans import TEXT_MAX, RunTracer, Span, SpanFailure, TracedStats

LEASE = Lease(pipeline="bank", partition="7", owner="host-a", incarnation="1", epoch=4, continuation="90")
BEFORE = Lease(pipeline="bank", partition="7", epoch=3, continuation="90")
FEED = Endpoint(system="eventhubs", name="orders", server="ns.example", group="$Default")
SINK = Endpoint(system="log", name="/var/out")
THEIRS = TraceContext(f"00-{7:032x}-{1:016x}-01")


@dataclass(slots=True)
class Noted:
    """Both a span that has begun and its handle."""

    span: Span
    within: object
    links: tuple[object, ...]
    number: int
    book: Notebook
    is_open: bool = True

    @property
    def handle(self) -> Noted:
        return self

    @property
    def context(self) -> TraceContext:
        return TraceContext(f"00-{1:032x}-{self.number:016x}-01")

    def end(self, attributes: Mapping[str, Any] | None = None, *, error: SpanFailure | None = None) -> None:
        self.is_open = False
        self.span = replace(self.span, attributes={**self.span.attributes, **(attributes or {})}, error=error)
        self.book.notes.append(self)


@dataclass(slots=True)
class Notebook:
    """Traces that are written down, in the order in which they end."""

    notes: list[Noted] = field(default_factory=list)
    begun: int = 0
    exported: int = 0
    propagates: bool = True

    @property
    def made(self) -> int:
        return len(self.notes)

    def send(self, span: Span, *, within: object = None, after: object = None) -> Noted:
        sent = self.begin(span, within=within, links=() if after is None else (after,))
        sent.end(error=span.error)
        return sent

    def begin(self, span: Span, *, within: object = None, links: Sequence[object] = ()) -> Noted:
        self.begun += 1
        return Noted(span, within, tuple(links), self.begun, self)

    async def close(self) -> None: ...

    def named(self, name: str) -> list[Noted]:
        return [noted for noted in self.notes if noted.span.name.partition(" ")[0] == name]


@pytest.fixture
def book() -> Notebook:
    return Notebook()


@dataclass
class Hands:
    """A clock that is set."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing sleeps here")


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def stats(hands: Hands, book: Notebook) -> TracedStats:
    return TracedStats(hands, book)


def transformed(to: str = "97", contexts: Contexts | None = None) -> TransformedBatch:
    given = {} if contexts is None else {"contexts": contexts}
    return TransformedBatch(start="90", to=to, events=7, rows=6, waited_s=1.0, transform_s=2.0, **given)


def delivered(to: str = "97") -> DeliveredBatch:
    return DeliveredBatch(start="90", to=to, events=7, waited_s=1.0, transform_s=2.0, queued_s=3.0, deliver_s=4.0)


def acquire(stats: TracedStats, sink: Endpoint = SINK) -> RunTracer:
    stats.record_acquisition(LEASE, before=BEFORE, took_s=0.1)
    tracer = stats.tracer(LEASE, FEED, sink)
    assert tracer is not None
    return tracer


# A host


async def test_a_host_tells_of_acquisition_batch_checkpoint_and_release(start, book: Notebook) -> None:
    running = await start(partitions=["a"], traces=book)
    running.feeds["bank"].append("a", [b"{}"] * 3)
    await until_async(lambda: book.named("checkpoint"))
    running.host.stop()
    await until_async(lambda: book.named("release"))
    (acquire,), (process,) = book.named("acquire"), book.named("process")
    inside = [noted.span.name.partition(" ")[0] for noted in book.notes if noted.within is process]
    assert inside == ["deliver", "receive", "transform", "queue", "checkpoint"]
    assert process.links == book.named("release")[0].links == (acquire,)
    for noted in book.notes:
        if noted.span.name in ("transform", "queue"):
            continue
        assert noted.span.attributes["leasehold.partition"] == "a"
        assert noted.span.attributes["leasehold.epoch"] == 1


async def test_a_handoff_is_told_by_both_hosts(start, book: Notebook) -> None:
    theirs = Notebook()
    first = await start("host-a", traces=book)
    await until_async(lambda: len(first.host.workers) == 2)
    await start("host-b", feeds=first.feeds, traces=theirs)
    await until_async(lambda: theirs.named("handoff") and book.named("handoff"))
    given, asked = book.named("handoff")[0], theirs.named("handoff")[0]
    assert given.span.attributes["leasehold.to"] == "host-b"
    assert (given.span.attributes["leasehold.side"], asked.span.attributes["leasehold.side"]) == ("owner", "taker")
    assert given.span.attributes["leasehold.partition"] == asked.span.attributes["leasehold.partition"]
    assert asked in [acquired.within for acquired in theirs.named("acquire")]


# Spans


def test_stages_follow_each_other_up_to_the_moment_of_delivery(
    stats: TracedStats, book: Notebook, hands: Hands
) -> None:
    tracer = acquire(stats)
    hands.now = 13.0
    tracer.begin(transformed())
    hands.now = 16.0
    tracer.begin_delivery("97", None)
    hands.now = 20.0
    stats.record_batch(LEASE, delivered())
    (process,), (send,) = book.named("process"), book.named("send")
    stages = [book.named(name)[0].span for name in ("receive", "transform", "queue")]
    times = [(stage.took_s, stage.ended_s_ago) for stage in stages]
    assert times == [(1, 9), (2, 7), (3, 4)]
    assert (process.span.took_s, send.span.took_s) == (3, 0), "they have begun then, and end now"
    assert {name: value for name, value in process.span.attributes.items() if name.startswith("leasehold.")} == {
        "leasehold.pipeline": "bank",
        "leasehold.partition": "7",
        "leasehold.epoch": 4,
        "leasehold.generation": 0,
        "leasehold.from": "90",
        "leasehold.to": "97",
        "leasehold.events": 7,
        "leasehold.dead_letters": 0,
    }


def test_output_bears_the_context_of_the_span_that_sends_it(stats: TracedStats, book: Notebook) -> None:
    tracer = acquire(stats)
    before, sent = tracer.begin(transformed()), tracer.begin_delivery("97", "3")
    stats.record_batch(LEASE, delivered())
    (process,), (send,) = book.named("process"), book.named("send")
    assert (before, sent) == (process.context, send.context)
    assert len(str(before)) == len(str(sent)), "its size is planned with the first, and it is sent with the second"
    assert send.within is process
    assert send.span.attributes["messaging.destination.partition.id"] == "3"


def test_a_batch_of_one_context_continues_its_trace_and_refers_to_it(stats: TracedStats, book: Notebook) -> None:
    tracer = acquire(stats)
    tracer.begin(transformed(contexts=Contexts((THEIRS,), are_one=True)))
    tracer.begin_delivery("97", None)
    stats.record_batch(LEASE, delivered())
    (process,) = book.named("process")
    assert process.within == THEIRS
    assert process.links == (book.named("acquire")[0], THEIRS)


def test_a_batch_of_several_contexts_refers_to_each_and_is_a_trace_of_its_own(
    stats: TracedStats, book: Notebook
) -> None:
    tracer, other = acquire(stats), TraceContext(f"00-{8:032x}-{1:016x}-01")
    tracer.begin(transformed(contexts=Contexts((THEIRS, other))))
    tracer.begin_delivery("97", None)
    stats.record_batch(LEASE, delivered())
    (process,) = book.named("process")
    assert process.within is None
    assert process.links[1:] == (THEIRS, other)


def test_without_propagation_nothing_is_read_or_published(stats: TracedStats, book: Notebook) -> None:
    book.propagates = False
    tracer = acquire(stats)
    assert not tracer.reads_contexts
    assert (tracer.begin(transformed()), tracer.begin_delivery("97", None)) == (None, None)
    stats.record_batch(LEASE, delivered())
    assert book.named("process")
    assert stats.trace_fields(LEASE)


def test_what_failed_says_why_and_from_where_it_continues(stats: TracedStats, book: Notebook) -> None:
    acquire(stats)
    stats.record_work_failure(LEASE, "90", SinkUnavailable("postgresql://ada:hunter2@db is away"))
    stats.record_renewal(LEASE, 0.1, StoreUnavailable("throttled"))
    stats.record_suspension(LEASE)
    (process,), (renew,), (suspend,) = book.named("process"), book.named("renew"), book.named("suspend")
    assert process.span.error == SpanFailure(
        "leasehold.pipeline.errors.SinkUnavailable", "SinkUnavailable: postgresql://ada:***@db is away"
    )
    assert process.span.attributes["leasehold.from"] == "90"
    assert renew.span.error == SpanFailure("leasehold.leases.errors.StoreUnavailable", "StoreUnavailable: throttled")
    assert suspend.span.error
    assert process.links == renew.links == suspend.links == (book.named("acquire")[0],)


def test_a_delivery_that_failed_ends_with_its_batch_and_those_behind_it_leave_nothing(
    stats: TracedStats, book: Notebook
) -> None:
    tracer = acquire(stats)
    tracer.begin(transformed("97"))
    tracer.begin_delivery("97", None)
    tracer.begin(transformed("99"))
    stats.record_work_failure(LEASE, "90", SinkUnavailable("away"))
    (process,), (send,) = book.named("process"), book.named("send")
    assert (
        process.span.error
        == send.span.error
        == SpanFailure("leasehold.pipeline.errors.SinkUnavailable", "SinkUnavailable: away")
    )
    assert process.span.attributes["leasehold.to"] == "97"
    assert stats.trace_fields(LEASE)["span_id"] == f"{process.number:016x}"
    assert tracer._open == {}


def test_a_delivery_under_way_ends_with_the_lease(stats: TracedStats, book: Notebook) -> None:
    tracer = acquire(stats)
    tracer.begin(transformed())
    tracer.begin_delivery("97", None)
    stats.record_release(LEASE, "stolen")
    assert [noted.span.error.type for noted in (*book.named("send"), *book.named("process")) if noted.span.error] == [
        "stolen",
        "stolen",
    ]


def test_the_log_has_the_trace_of_the_newest_batch(stats: TracedStats, book: Notebook) -> None:
    assert stats.trace_fields(LEASE) == {}
    tracer = acquire(stats)
    tracer.begin(transformed())
    tracer.begin_delivery("97", None)
    stats.record_batch(LEASE, delivered())
    (process,) = book.named("process")
    assert stats.trace_fields(LEASE) == {"trace_id": f"{1:032x}", "span_id": f"{process.number:016x}"}


def test_long_texts_are_cut(stats: TracedStats, book: Notebook) -> None:
    tracer = acquire(stats)
    tracer.begin(transformed("9" * 10_000))
    tracer.begin_delivery("9" * 10_000, None)
    stats.record_batch(LEASE, delivered("9" * 10_000))
    assert len(str(book.named("process")[0].span.attributes["leasehold.to"])) == TEXT_MAX


def test_what_is_kept_of_a_lease_goes_with_it(stats: TracedStats) -> None:
    stats.record_lease_request(BEFORE)
    tracer = acquire(stats)
    stats.record_handoff_request(LEASE)
    tracer.begin(transformed())
    stats.record_release(LEASE, "shutdown")
    assert tracer.begin_delivery("97", None) is None
    stats.record_batch(LEASE, delivered())
    assert (stats._tenures, stats._asked_at, tracer._open) == ({}, {}, {})
    assert stats.tracer(LEASE, FEED, SINK) is None


def test_traced_stats_count_as_any_others(stats: TracedStats, book: Notebook) -> None:
    acquire(stats)
    stats.record_batch(LEASE, delivered())
    stats.record_checkpoint(LEASE, 0.1)
    stats.record_suspension(LEASE)
    stats.record_work_failure(LEASE, None, SinkUnavailable("away"))
    stats.record_release(LEASE, "stolen")
    assert (stats.events["bank"], stats.batches["bank"], stats.suspensions["bank"]) == (7, 1, 1)
    assert stats.moves == {("bank", "acquired"): 1, ("bank", "stolen"): 1}
    assert stats.retries == {("bank", "sink"): 1}
    assert stats.seconds["bank", "checkpoint"].cumulative[-1] == 1
    assert stats.spans_made == book.made == 5
