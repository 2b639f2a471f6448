"""What becomes a span: acquisitions, renewals, requests and releases of leases, and batches with their stages. Pure.

Attributes name lease, epoch and positions. Texts are cut, and secrets are masked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.clock import Clock
from leases.errors import StoreError
from leases.lease import Lease, LeaseKey
from pipeline.pump.runner import DeliveredBatch
from pipeline.sink import CloseReason
from service.stats import Stats
from service.telemetry import spans
from service.texts import redacted

TEXT_MAX = 200
"""Characters of an attribute. Positions of files are long, and errors are for the log."""

Value = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A finished operation. took_s: its duration; ended_s_ago: before it was reported. error: why it failed, if it did.

    parts: what it consists of, in its own trace.
    """

    name: str
    took_s: float
    attributes: Mapping[str, Value]
    ended_s_ago: float = 0.0
    error: str | None = None
    parts: tuple[Span, ...] = ()


class SpanHandle(Protocol):
    """The identity of a reported span, for spans that belong to it."""


class Traces(Protocol):
    """Where spans go."""

    @property
    def made(self) -> int:
        """How many so far, without those that the sampler left out."""
        ...

    @property
    def exported(self) -> int:
        """How many of those a collector has accepted."""
        ...

    def send(self, span: Span, *, within: SpanHandle | None = None, after: SpanHandle | None = None) -> SpanHandle:
        """Returns at once. within: the enclosing span. after: a span to refer to from a new trace."""
        ...

    async def close(self) -> None:
        """Waits a moment for what is under way."""
        ...


def acquired(lease: Lease, before: Lease, took_s: float) -> Span:
    return Span(
        name="acquire", took_s=took_s, attributes=_about(lease, before=before.owner, position=lease.continuation)
    )


def asked(lease: Lease, took_s: float) -> Span:
    """From its request until the lease was acquired, on the host that asked."""
    return Span(name="handoff", took_s=took_s, attributes=_about(lease, side="taker"))


def given(lease: Lease, reason: CloseReason, took_s: float) -> Span:
    """From the request until the release, on the owner's host."""
    return Span(
        name="handoff", took_s=took_s, attributes=_about(lease, side="owner", to=lease.handoff_to, reason=reason)
    )


def let_go(lease: Lease, reason: CloseReason) -> Span:
    return Span(name="release", took_s=0.0, attributes=_about(lease, reason=reason, position=lease.continuation))


def renewed(lease: Lease, took_s: float, error: Exception | None) -> Span:
    return Span(name="renew", took_s=took_s, attributes=_about(lease), error=_why(error))


def suspended(lease: Lease) -> Span:
    return Span(name="suspend", took_s=0.0, attributes=_about(lease), error="the lease could not be renewed in time")


def delivered_batch(lease: Lease, batch: DeliveredBatch) -> Span:
    """read, transform, queue, deliver: one after the other, up to now."""
    stages = {
        "read": batch.waited_s,
        "transform": batch.transform_s,
        "queue": batch.queued_s,
        "deliver": batch.deliver_s,
    }
    left, parts = sum(stages.values()), []
    for name, took_s in stages.items():
        left -= took_s
        parts.append(Span(name=name, took_s=took_s, ended_s_ago=max(0.0, left), attributes={}))
    numbers = {"leasehold.events": batch.events, "leasehold.dead_letters": batch.dead_letters}
    return Span(
        name="batch",
        took_s=sum(stages.values()),
        attributes=_about(lease, **{"from": batch.start, "to": batch.to}) | numbers,
        parts=tuple(parts),
    )


def failed_batch(lease: Lease, position: str | None, error: Exception) -> Span:
    return Span(name="batch", took_s=0.0, attributes=_about(lease, **{"from": position}), error=_why(error))


def checkpointed(lease: Lease, took_s: float) -> Span:
    return Span(name="checkpoint", took_s=took_s, attributes=_about(lease, to=lease.continuation))


def _about(lease: Lease, **more: str | None) -> dict[str, Value]:
    fields: dict[str, str | int | None] = {
        "pipeline": lease.pipeline,
        "partition": lease.partition,
        "epoch": lease.epoch,
        "generation": lease.generation,
        **more,
    }
    return {f"leasehold.{name}": _cut(value) for name, value in fields.items() if value is not None}


def _cut(value: str | int) -> str | int:
    if isinstance(value, int):
        return value
    text = redacted(value)
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 3]}..."


def _why(error: Exception | None) -> str | None:
    return None if error is None else str(_cut(f"{type(error).__name__}: {error}"))


# Stats that also report operations as traces.
#
# Each operation is a trace of its own, so that none grows for as long as a lease is held. Those of a tenure refer to its
# `acquire`, and a checkpoint belongs to the trace of the newest batch that it covers.


@dataclass(slots=True)
class _Tenure:
    """acquired, batch: its first span, and that of its newest batch. wanted_at: since when another host requests it."""

    acquired: SpanHandle
    batch: SpanHandle | None = None
    wanted_at: float | None = None


class TracedStats(Stats):
    """What is kept for spans to come is bounded by the leases of the group."""

    def __init__(self, clock: Clock, traces: Traces, log: Log | None = None) -> None:
        super().__init__(clock, log)
        self._traces = traces
        self._tenures: dict[LeaseKey, _Tenure] = {}
        self._asked_at: dict[LeaseKey, float] = {}

    @property
    def spans_made(self) -> int:
        return self._traces.made

    @property
    def spans_exported(self) -> int:
        return self._traces.exported

    def record_lease_request(self, lease: Lease) -> None:
        super().record_lease_request(lease)
        self._asked_at[lease.key] = self.clock.monotonic()

    def record_acquisition(self, lease: Lease, *, before: Lease, took_s: float) -> None:
        super().record_acquisition(lease, before=before, took_s=took_s)
        asked_at = self._asked_at.pop(lease.key, None)
        handoff = None if asked_at is None else self._traces.send(spans.asked(lease, self.clock.monotonic() - asked_at))
        handle = self._traces.send(spans.acquired(lease, before, took_s), within=handoff)
        self._tenures[lease.key] = _Tenure(handle)

    def record_renewal(self, lease: Lease, took_s: float, error: StoreError | None = None) -> None:
        super().record_renewal(lease, took_s, error)
        self._traces.send(spans.renewed(lease, took_s, error), after=self._acquired(lease))

    def record_handoff_request(self, lease: Lease) -> None:
        super().record_handoff_request(lease)
        tenure = self._tenures.get(lease.key)
        if tenure is not None and tenure.wanted_at is None:
            tenure.wanted_at = self.clock.monotonic()

    def record_release(self, lease: Lease, reason: CloseReason) -> None:
        super().record_release(lease, reason)
        tenure = self._tenures.pop(lease.key, None)
        acquired = None if tenure is None else tenure.acquired
        if tenure is None or tenure.wanted_at is None:
            self._traces.send(spans.let_go(lease, reason), after=acquired)
        else:
            took_s = self.clock.monotonic() - tenure.wanted_at
            self._traces.send(spans.given(lease, reason, took_s), after=acquired)

    def record_suspension(self, lease: Lease) -> None:
        super().record_suspension(lease)
        self._traces.send(spans.suspended(lease), after=self._acquired(lease))

    def record_batch(self, lease: Lease, batch: DeliveredBatch) -> None:
        super().record_batch(lease, batch)
        handle = self._traces.send(spans.delivered_batch(lease, batch), after=self._acquired(lease))
        if (tenure := self._tenures.get(lease.key)) is not None:
            tenure.batch = handle

    def record_checkpoint(self, lease: Lease, took_s: float) -> None:
        super().record_checkpoint(lease, took_s)
        tenure = self._tenures.get(lease.key)
        if tenure is not None:
            self._traces.send(spans.checkpointed(lease, took_s), within=tenure.batch, after=tenure.acquired)

    def record_work_failure(self, lease: Lease, position: str | None, error: Exception) -> None:
        super().record_work_failure(lease, position, error)
        self._traces.send(spans.failed_batch(lease, position, error), after=self._acquired(lease))

    def _acquired(self, lease: Lease) -> SpanHandle | None:
        tenure = self._tenures.get(lease.key)
        return None if tenure is None else tenure.acquired
