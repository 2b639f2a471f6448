"""Spans of acquisitions, renewals, requests and releases of leases, and of batches with their stages; and where spans go.

A batch has a span that begins when the batch has been transformed, before its output is sent: what is published carries its
context. All other spans are reported once they have ended. Attributes are those of leasehold.service.telemetry.conventions, and
`leasehold.*` for lease, epoch and positions. Texts are cut, and secrets are masked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple, Protocol

from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.clock import Clock
from leasehold.leases.errors import StoreError
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.pipeline.endpoint import Endpoint
from leasehold.pipeline.pump.run_parts import DeliveredBatch
from leasehold.pipeline.sink import CloseReason
from leasehold.pipeline.tracing import TraceContext, TransformedBatch
from leasehold.service.notifier import Notifier
from leasehold.service.stats import Stats
from leasehold.service.telemetry.conventions import Kind, Operation, Value, delivery, error_type, messaging
from leasehold.service.texts import redacted

TEXT_MAX = 200
"""Characters of an attribute. Positions of files are long, and errors are for the log."""

About = Mapping[str, str | int | None]
"""Attributes of one operation, in addition to those of its lease."""
NOTHING: About = MappingProxyType({})


class SpanFailure(NamedTuple):
    """type: `error.type` of the conventions."""

    type: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """An operation. took_s: how long it took, until `ended_s_ago`. error: why it failed, if it did."""

    name: str
    took_s: float
    attributes: Mapping[str, Value]
    kind: Kind = "internal"
    ended_s_ago: float = 0.0
    error: SpanFailure | None = None


SpanHandle = object
"""The identity of a span, for spans that belong to it."""


class OpenSpan(Protocol):
    """A span that has begun."""

    @property
    def context(self) -> TraceContext: ...

    @property
    def handle(self) -> SpanHandle: ...

    def end(self, attributes: Mapping[str, Value] = ..., *, error: SpanFailure | None = None) -> None: ...


class Traces(Protocol):
    """Where spans go."""

    @property
    def propagates(self) -> bool:
        """Whether contexts are read from events, and published with output."""
        ...

    @property
    def made(self) -> int:
        """How many spans were made so far, without those that the sampler left out."""
        ...

    @property
    def exported(self) -> int:
        """How many of those a collector has accepted."""
        ...

    def send(self, span: Span, *, within: SpanHandle | None = None, after: SpanHandle | None = None) -> SpanHandle:
        """Returns at once. within: the enclosing span. after: a span to refer to from a new trace."""
        ...

    def begin(
        self,
        span: Span,
        *,
        within: SpanHandle | TraceContext | None = None,
        links: Sequence[SpanHandle | TraceContext] = (),
    ) -> OpenSpan:
        """Begin a span that has already lasted `took_s`."""
        ...

    async def close(self) -> None:
        """Waits a moment for what is under way."""
        ...


# Each operation is a trace of its own, so that no trace grows while a lease is held. The traces of a tenure refer to its
# `acquire`, and a checkpoint belongs to the trace of the newest batch that it covers.


@dataclass(slots=True)
class _Tenure:
    """acquired, batch: its first span, and that of its newest batch. wanted_at: since when another host has requested the lease.
    context: of its newest batch that was delivered or failed."""

    acquired: SpanHandle
    batch: SpanHandle | None = None
    wanted_at: float | None = None
    tracer: RunTracer | None = None
    context: TraceContext | None = None


@dataclass(slots=True)
class _Traced:
    """A batch whose span has begun."""

    batch: TransformedBatch
    process: OpenSpan
    since: float
    delivery: OpenSpan | None = None
    delivered_since: float = 0.0


class RunTracer:
    """Implements leasehold.pipeline.tracing.BatchTracer. Batches that are dropped, or cut into others, leave no span."""

    def __init__(
        self, traces: Traces, clock: Clock, lease: Lease, feed: Endpoint, sink: Endpoint, acquired: SpanHandle | None
    ) -> None:
        self.feed = feed
        self._traces = traces
        self._clock = clock
        self._lease = lease
        self._sink = sink
        self._acquired = acquired
        self._open: dict[str, _Traced] = {}

    @property
    def reads_contexts(self) -> bool:
        return self._traces.propagates

    def begin(self, batch: TransformedBatch) -> TraceContext | None:
        about = {"from": batch.start, "to": batch.to, "events": batch.events}
        span = self.span("process", "process", about, took_s=batch.waited_s + batch.transform_s, events=batch.events)
        links = [*([] if self._acquired is None else [self._acquired]), *batch.contexts.found]
        within = batch.contexts.found[0] if batch.contexts.are_one else None
        process = self._traces.begin(span, within=within, links=links)
        self._open[batch.to] = _Traced(batch, process, self._clock.monotonic())
        return process.context if self._traces.propagates else None

    def begin_delivery(self, to: str, place: str | None) -> TraceContext | None:
        if (traced := self._open.get(to)) is None:  # its lease was released meanwhile
            return None
        operation = delivery(self._sink, place or self._lease.partition)
        attributes = {**operation.attributes, **_attributes(self._lease, {"rows": traced.batch.rows})}
        if operation.kind == "producer":
            attributes["messaging.batch.message_count"] = traced.batch.rows
        span = Span(name=_named(operation), kind=operation.kind, took_s=0.0, attributes=attributes)
        traced.delivery = self._traces.begin(span, within=traced.process.handle)
        traced.delivered_since = self._clock.monotonic()
        return traced.delivery.context if self._traces.propagates else None

    def end(self, batch: DeliveredBatch) -> OpenSpan | None:
        """The span of the batch, whose output is safe now."""
        traced = self._open.pop(batch.to, None)
        if traced is None:
            return None
        if traced.delivery is not None:
            traced.delivery.end()
        self._send_stages(traced)
        traced.process.end({"leasehold.dead_letters": batch.dead_letters})
        return traced.process

    def fail(self, error: SpanFailure) -> OpenSpan | None:
        """End every batch that was being delivered. Later batches are dropped, and read again."""
        failed = None
        for traced in self._open.values():
            if traced.delivery is not None:
                traced.delivery.end(error=error)
                self._send_stages(traced)
                traced.process.end(error=error)
                failed = failed or traced.process
        self._open.clear()
        return failed

    def span(
        self, name: str, type: str, about: About, *, took_s: float, events: int | None = None, ended_s_ago: float = 0.0
    ) -> Span:
        """A span for an operation on the feed."""
        lease = self._lease
        operation = messaging(self.feed, name, type, pipeline=lease.pipeline, partition=lease.partition)
        attributes = {**operation.attributes, **_attributes(lease, about)}
        if events is not None:
            attributes["messaging.batch.message_count"] = events
        kind = operation.kind
        return Span(name=_named(operation), kind=kind, took_s=took_s, attributes=attributes, ended_s_ago=ended_s_ago)

    def _send_stages(self, traced: _Traced) -> None:
        """Send the spans of the stages, one after the other, up to the delivery."""
        now, batch = self._clock.monotonic(), traced.batch
        queued_s, ended_s_ago = traced.delivered_since - traced.since, now - traced.since
        receive = self.span(
            "receive",
            "receive",
            NOTHING,
            took_s=batch.waited_s,
            events=batch.events,
            ended_s_ago=ended_s_ago + batch.transform_s,
        )
        transform = Span(name="transform", took_s=batch.transform_s, attributes={}, ended_s_ago=ended_s_ago)
        queue = Span(name="queue", took_s=queued_s, attributes={}, ended_s_ago=ended_s_ago - queued_s)
        for span in (receive, transform, queue):
            self._traces.send(span, within=traced.process.handle)


class TracedStats(Stats):
    """Statistics that also make spans. What they keep for later spans is bounded by the leases of the group."""

    def __init__(
        self,
        clock: Clock,
        traces: Traces,
        log: Log | None = None,
        *,
        now: Callable[[], datetime] | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        super().__init__(clock, log, now=now, notifier=notifier)
        self._traces = traces
        self._tenures: dict[LeaseKey, _Tenure] = {}
        self._asked_at: dict[LeaseKey, float] = {}

    @property
    def spans_made(self) -> int:
        return self._traces.made

    @property
    def spans_exported(self) -> int:
        return self._traces.exported

    def tracer(self, lease: Lease, feed: Endpoint, sink: Endpoint) -> RunTracer | None:
        tenure = self._tenures.get(lease.key)
        if tenure is None:
            return None
        tenure.tracer = RunTracer(self._traces, self.clock, lease, feed, sink, tenure.acquired)
        return tenure.tracer

    def trace_fields(self, lease: Lease) -> dict[str, object]:
        tenure = self._tenures.get(lease.key)
        if tenure is None or tenure.context is None:
            return {}
        _, trace_id, span_id, _ = tenure.context.parent.split("-")
        return {"trace_id": trace_id, "span_id": span_id}

    def record_lease_request(self, lease: Lease) -> None:
        super().record_lease_request(lease)
        self._asked_at[lease.key] = self.clock.monotonic()

    def record_acquisition(self, lease: Lease, *, before: Lease, took_s: float) -> None:
        super().record_acquisition(lease, before=before, took_s=took_s)
        self._tenures.pop(lease.key, None)
        asked_at, handoff = self._asked_at.pop(lease.key, None), None
        if asked_at is not None:
            handoff = self._send("handoff", lease, self.clock.monotonic() - asked_at, about={"side": "taker"})
        about = {"before": before.owner, "position": lease.continuation}
        acquired = self._send("acquire", lease, took_s, within=handoff, about=about)
        self._tenures[lease.key] = _Tenure(acquired)

    def record_renewal(self, lease: Lease, took_s: float, error: StoreError | None = None) -> None:
        super().record_renewal(lease, took_s, error)
        self._send("renew", lease, took_s, error=error)

    def record_handoff_request(self, lease: Lease) -> None:
        super().record_handoff_request(lease)
        tenure = self._tenures.get(lease.key)
        if tenure is not None and tenure.wanted_at is None:
            tenure.wanted_at = self.clock.monotonic()

    def record_release(self, lease: Lease, reason: CloseReason, *, taken_by: str | None = None) -> None:
        super().record_release(lease, reason, taken_by=taken_by)
        tenure = self._tenures.get(lease.key)
        if tenure is not None and tenure.tracer is not None:
            tenure.tracer.fail(SpanFailure(reason, "the lease was released meanwhile"))
        if tenure is None or tenure.wanted_at is None:
            self._send("release", lease, about={"reason": reason, "position": lease.continuation})
        else:
            took_s = self.clock.monotonic() - tenure.wanted_at
            about = {"side": "owner", "to": lease.handoff_to, "reason": reason}
            self._send("handoff", lease, took_s, about=about)
        self._tenures.pop(lease.key, None)

    def record_suspension(self, lease: Lease, *, is_first: bool = True) -> None:
        super().record_suspension(lease, is_first=is_first)
        self._send("suspend", lease, error=SpanFailure("suspended", "no heartbeat arrived in time"))

    def record_batch(self, lease: Lease, batch: DeliveredBatch) -> None:
        tenure = self._tenures.get(lease.key)
        if tenure is not None and tenure.tracer is not None and (ended := tenure.tracer.end(batch)) is not None:
            tenure.batch, tenure.context = ended.handle, ended.context
        super().record_batch(lease, batch)

    def record_checkpoint(self, lease: Lease, took_s: float) -> None:
        super().record_checkpoint(lease, took_s)
        if (tenure := self._tenures.get(lease.key)) is not None and tenure.tracer is not None:
            span = tenure.tracer.span("checkpoint", "settle", {"to": lease.continuation}, took_s=took_s)
            self._traces.send(span, within=tenure.batch, after=tenure.acquired)

    def record_work_failure(self, lease: Lease, position: str | None, error: Exception) -> None:
        super().record_work_failure(lease, position, error)
        tenure = self._tenures.get(lease.key)
        if tenure is None or tenure.tracer is None:
            self._send("process", lease, about={"from": position}, error=error)
            return
        failure = _failure(error)
        if (failed := tenure.tracer.fail(failure)) is not None:
            tenure.context = failed.context
            return
        span = tenure.tracer.span("process", "process", {"from": position}, took_s=0.0)
        failing = self._traces.begin(span, links=[tenure.acquired])
        failing.end(error=failure)
        tenure.context = failing.context

    def _send(
        self,
        name: str,
        lease: Lease,
        took_s: float = 0.0,
        *,
        about: About = NOTHING,
        within: SpanHandle | None = None,
        error: Exception | SpanFailure | None = None,
    ) -> SpanHandle:
        """Report a span that ends now, and refers to the one of the lease's acquisition."""
        failure = _failure(error) if isinstance(error, Exception) else error
        span = Span(name=name, took_s=took_s, attributes=_attributes(lease, about), error=failure)
        tenure = self._tenures.get(lease.key)
        return self._traces.send(span, within=within, after=None if tenure is None else tenure.acquired)


def _named(operation: Operation) -> str:
    return str(_cut(operation.name))


def _attributes(lease: Lease, about: About) -> dict[str, Value]:
    fields: dict[str, str | int | None] = {
        "pipeline": lease.pipeline,
        "partition": lease.partition,
        "epoch": lease.epoch,
        "generation": lease.generation,
        **about,
    }
    return {f"leasehold.{name}": _cut(value) for name, value in fields.items() if value is not None}


def _cut(value: str | int) -> str | int:
    if isinstance(value, int):
        return value
    text = redacted(value)
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 3]}..."


def _failure(error: Exception) -> SpanFailure:
    return SpanFailure(error_type(error), str(_cut(f"{type(error).__name__}: {error}")))
