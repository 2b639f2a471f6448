"""One pipeline as a host runs it: its feed, transform and sink, and the limits set for it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold.leases.bootstrap import Identity
from leasehold.pipeline.dead_letters import DeadLetters, LetterBox, sink_alone
from leasehold.pipeline.feed import ChangeFeed, Start
from leasehold.pipeline.imports import derived
from leasehold.pipeline.limits import BatchLimits, RangeLimits
from leasehold.pipeline.sink import Sink
from leasehold.pipeline.transform import NoTransform as NoTransform
from leasehold.pipeline.transform import Transform

if TYPE_CHECKING:
    from leasehold.pipeline.outside_checkpoints import OutsideCheckpoints

SPARED_S = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineParts:
    """transform_digest: recorded with the leases, so that a changed transform is noticed.

    Raises ValueError if executors may take as long for a batch as a batch may take at all.
    """

    name: str
    feed: ChangeFeed
    sink: Sink
    transform: Transform = field(default_factory=NoTransform)
    transform_digest: str = ""
    start: Start = "earliest"
    """Where the partitions that exist at the pipeline's first run begin."""
    starts: Mapping[str, Start] = field(default_factory=dict)
    """Partition name -> where it begins instead."""
    limits: BatchLimits = field(default_factory=BatchLimits)
    buffer_bytes_max: int = 32 * 1024 * 1024
    """How much is read ahead per partition."""
    batch_timeout_s: float = 300.0
    """How long one stage of one batch may take."""
    checkpoint_s: float = 5.0
    """How far the lease's continuation may lag behind a sink that holds its position."""
    unkept_s: float = 0.0
    """How long output in a sink that holds no position may go without a checkpoint; a crash repeats that output. 0: each batch
    gets its checkpoint before the next is sent."""
    ranges: RangeLimits | None = None
    """When executors read the events instead of the host, if feed and transform allow it. None: never."""
    letters: DeadLetters | None = None
    """What becomes of events that cannot be processed, for a sink that keeps dead letters; None to stop at the first."""
    box: LetterBox | None = None
    """Where the pipeline's dead letters are read."""
    outside_checkpoints: OutsideCheckpoints | None = None
    """The place of positions for readers outside, such as KEDA; None: none are written."""

    def __post_init__(self) -> None:
        derived(self.feed, ChangeFeed)
        derived(self.sink, Sink)
        derived(self.transform, Transform)
        if self.ranges is not None and self.ranges.job_s_max >= self.batch_timeout_s:
            raise ValueError(
                f"ranges.job_s_max ({self.ranges.job_s_max:g}) has to be below batch_timeout_s ({self.batch_timeout_s:g}):"
                " use RangeLimits.beginning_at(from_events, batch_timeout_s)"
            )

    @property
    def lag_s(self) -> float:
        """How far the lease may lag behind the delivered output, if the position is not stored before the next batch is sent."""
        return self.checkpoint_s if self.sink.holds_position or not self.unkept_s else self.unkept_s

    @property
    def spared_s(self) -> float:
        """The shortest time between two checkpoints of a partition that is idle again and again: not each event of a trickle
        should cost a write."""
        return SPARED_S if self.sink.holds_position else max(SPARED_S, self.unkept_s)

    @property
    def position_lag_s(self) -> float:
        """How far the lease of a working owner may be behind what is delivered, apart from the batch in hand."""
        return self.lag_s if self.sink.holds_position or self.unkept_s else 0.0

    def claimed(self, state: str) -> str:
        """The sink state of a lease's next claim, without what a former box of dead letters has left in it."""
        has_own_box = self.box is not None and self.box.sink is not None
        return self.sink.claimed(state if has_own_box else sink_alone(state))

    async def check_columns(self) -> None:
        """Check that the sink takes what the transform yields, once both are prepared. Raises SinkRejected, SinkUnavailable."""
        with suppress(NotImplementedError):  # raised by a transform that does not know its columns
            await self.sink.check_columns(self.transform.columns)

    @property
    def identity(self) -> Identity:
        return Identity(self.feed.identity, self.sink.identity, self.transform_digest)
