"""What a run of a partition gets, what its stages share, and what it reports about each batch."""

from __future__ import annotations

from dataclasses import dataclass, field

from leasehold.common.clock import Clock
from leasehold.pipeline.dead_letters.dead_letter_transform import DeadLetters
from leasehold.pipeline.dead_letters.refusals import Refusals
from leasehold.pipeline.feed import ChangeFeed
from leasehold.pipeline.limits import BatchLimits, Budget, Share
from leasehold.pipeline.pump.buffer import PageBuffer
from leasehold.pipeline.pump.progress import Progress
from leasehold.pipeline.pump.tap import Tap
from leasehold.pipeline.ranges import RangePlan
from leasehold.pipeline.sink import SinkWriter
from leasehold.pipeline.tracing import BatchTracer
from leasehold.pipeline.transform import Transform


@dataclass(frozen=True, slots=True)
class Source:
    """The partition that is read. epoch: of the lease it is read for, passed to feeds that rank readers by it."""

    feed: ChangeFeed
    partition: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAhead:
    """How much is read before it is delivered.

    - `bytes_max`: of this partition. `budget`: of all partitions of the process.
    - `plan`: who reads what. None: the host reads everything.
    """

    limits: BatchLimits
    bytes_max: int
    budget: Budget
    plan: RangePlan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingEvents:
    """How a run treats events that cannot be processed.

    - `letters`: what becomes of them; None: stop at the first. If given, the writer has to be one that keeps dead letters.
    - `refusals`: what the sink refused in earlier runs, for the search for the event; None: do not search.
    """

    letters: DeadLetters | None = None
    refusals: Refusals | None = None


STOP = FailingEvents()
"""Stop at the first event that cannot be processed, without a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """Where a run reports. tap: shows what is read and delivered to its watchers. tracer: of this run; None without traces."""

    progress: Progress
    tap: Tap = field(default_factory=Tap)
    tracer: BatchTracer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """What the stages of a run share. buffer: between the first and the second. share: of memory, for all of them."""

    source: Source
    transform: Transform
    writer: SinkWriter
    failing: FailingEvents
    buffer: PageBuffer
    share: Share
    clock: Clock
    reporting: Reporting


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredBatch:
    """A batch that has become safe, without its data, and how long that took, stage after stage.

    start, to: its positions. rows: of its output. waited_s: from when its first event was read to its transform.
    queued_s: from its transform until the batches before it were settled.
    """

    start: str | None
    to: str
    events: int
    rows: int = 0
    dead_letters: int = 0
    waited_s: float
    transform_s: float
    queued_s: float = 0.0
    deliver_s: float
