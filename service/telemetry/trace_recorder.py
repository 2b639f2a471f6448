"""A tally that also tells traces of what happens.

Each operation is a trace of its own, so that none grows for as long as a lease is held; those of a tenure refer to its `acquire`,
and a checkpoint belongs to the trace of the newest batch that it covers.
"""

from __future__ import annotations

from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger as Log

from leases.balance import Key
from leases.clock import Clock
from leases.errors import StoreError
from leases.lease import Lease
from pipeline.pump.runner import Delivered
from pipeline.sink import CloseReason
from service.stats import Tally
from service.telemetry import spans
from service.telemetry.spans import Told, Traces


@dataclass(slots=True)
class _Tenure:
    """acquired, batch: its first span, and that of its newest batch. wanted_at: since when somebody asks for it."""

    acquired: Told
    batch: Told | None = None
    wanted_at: float | None = None


class TracedTally(Tally):
    """What is kept for spans to come is bounded by the leases of the group."""

    def __init__(self, clock: Clock, traces: Traces, log: Log | None = None) -> None:
        super().__init__(clock, log)
        self._traces = traces
        self._tenures: dict[Key, _Tenure] = {}
        self._asked_at: dict[Key, float] = {}

    @property
    def spans_made(self) -> int:
        return self._traces.made

    @property
    def spans_exported(self) -> int:
        return self._traces.exported

    def lease_asked_for(self, lease: Lease) -> None:
        super().lease_asked_for(lease)
        self._asked_at[lease.key] = self.clock.monotonic()

    def lease_acquired(self, lease: Lease, *, before: Lease, took_s: float) -> None:
        super().lease_acquired(lease, before=before, took_s=took_s)
        asked_at = self._asked_at.pop(lease.key, None)
        handoff = None if asked_at is None else self._traces.tell(spans.asked(lease, self.clock.monotonic() - asked_at))
        told = self._traces.tell(spans.acquired(lease, before, took_s), within=handoff)
        self._tenures[lease.key] = _Tenure(told)

    def lease_renewed(self, lease: Lease, took_s: float, error: StoreError | None = None) -> None:
        super().lease_renewed(lease, took_s, error)
        self._traces.tell(spans.renewed(lease, took_s, error), after=self._acquired(lease))

    def lease_wanted(self, lease: Lease) -> None:
        super().lease_wanted(lease)
        tenure = self._tenures.get(lease.key)
        if tenure is not None and tenure.wanted_at is None:
            tenure.wanted_at = self.clock.monotonic()

    def lease_let_go(self, lease: Lease, reason: CloseReason) -> None:
        super().lease_let_go(lease, reason)
        tenure = self._tenures.pop(lease.key, None)
        acquired = None if tenure is None else tenure.acquired
        if tenure is None or tenure.wanted_at is None:
            self._traces.tell(spans.let_go(lease, reason), after=acquired)
        else:
            took_s = self.clock.monotonic() - tenure.wanted_at
            self._traces.tell(spans.given(lease, reason, took_s), after=acquired)

    def trust_suspended(self, lease: Lease) -> None:
        super().trust_suspended(lease)
        self._traces.tell(spans.suspended(lease), after=self._acquired(lease))

    def batch_delivered(self, lease: Lease, delivered: Delivered) -> None:
        super().batch_delivered(lease, delivered)
        told = self._traces.tell(spans.delivered_batch(lease, delivered), after=self._acquired(lease))
        if (tenure := self._tenures.get(lease.key)) is not None:
            tenure.batch = told

    def checkpointed(self, lease: Lease, took_s: float) -> None:
        super().checkpointed(lease, took_s)
        tenure = self._tenures.get(lease.key)
        if tenure is not None:
            self._traces.tell(spans.checkpointed(lease, took_s), within=tenure.batch, after=tenure.acquired)

    def work_failed(self, lease: Lease, position: str | None, error: Exception) -> None:
        super().work_failed(lease, position, error)
        self._traces.tell(spans.failed_batch(lease, position, error), after=self._acquired(lease))

    def _acquired(self, lease: Lease) -> Told | None:
        tenure = self._tenures.get(lease.key)
        return None if tenure is None else tenure.acquired
