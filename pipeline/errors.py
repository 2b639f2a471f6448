"""Everything that can go wrong between a feed and a sink.

PipelineError
├── FeedError
│   ├── FeedUnavailable        refused, throttled or too slow; the same read may be tried again
│   │   └── FeedNotFound       the source does not exist, or this process has no right to read it
│   ├── PositionLost           the continuation no longer leads anywhere: retention passed it, the file was replaced
│   └── MalformedRecord        a record of the source that cannot become an event
├── PartitionEnded             the partition was split or merged; its children continue it (leasehold.pipeline.feed)
├── NotImportable              a `module:attribute` of the settings that leads nowhere
├── TransformError             the transform is wrong, whatever the events are
├── PoisonEvent                events that the transform cannot process
│   ├── FailsTogether          events that can be processed one by one, but not together
│   └── TooMuchPoison          more of the last events than may become dead letters
├── EngineUnavailable          Spark died or refused; never evidence of poison
├── SinkError
│   ├── SinkUnavailable        refused, throttled or too slow, and surely not applied; may be tried again
│   │   └── SinkNotFound       its address leads nowhere
│   ├── SinkRejected           the destination refuses this output, and will refuse it again
│   │   └── OutputRefused      it does so because of the contents, and takes other output
│   │       └── OutputTooLarge more than the destination takes at once: less of it may fit
│   ├── OutputSuspected        output was refused: claim again, and try less of it
│   └── Ambiguous              sent, but the answer was lost: raise the epoch, reopen, and ask for the position
├── Fenced                     a later epoch is active: stop, or (if the lease is still ours) raise the epoch and reopen
└── NotTrusted                 the lease's trust window is closed: nothing may be sent now
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


class PipelineError(Exception):
    """Base of all errors of this package."""


class FeedError(PipelineError):
    """A source that could not be read."""


class FeedUnavailable(FeedError):
    """The read may be tried again, after `retry_after_s` if the source gave a time."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class FeedNotFound(FeedUnavailable):
    """The source does not exist, or this process has no right to read it. A running host waits, but only a person can help."""


class PositionLost(FeedError):
    """Continuing would skip or repeat events. Only a person can choose the next position."""


class MalformedRecord(FeedError):
    """A record that cannot become an event. Once the source is corrected, processing continues from this record."""


class NotImportable(PipelineError):
    """A `module:attribute` whose module or attribute is missing, or whose module fails while it is imported (the cause)."""


class TransformError(PipelineError):
    """SQL that does not parse, a function that cannot be imported, a broken partition contract, a plan that fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poison:
    """An event that cannot be processed. index: its place in the batch. attempts: how often it was seen to fail.

    is_misfit: its body does not fit the schema; no transform has seen it.
    """

    index: int
    reason: str
    attempts: int = 1
    is_misfit: bool = False


class PoisonEvent(PipelineError):
    """Events that cannot be processed, isolated as far as they can be.

    - `before`: how many events of the batch precede the first of them; those can still be delivered.
    - `sequence`: of the first of them.
    - `events`: how many, from the first on, could not be separated; usually 1.
    - `found`: all that were found, by their places.
    - `output`: what the batch's other events became, if that is known already.
    """

    def __init__(
        self,
        message: str,
        *,
        before: int,
        sequence: int,
        events: int = 1,
        found: Iterable[Poison] = (),
        output: pa.Table | None = None,
    ) -> None:
        super().__init__(message)
        self.before = before
        self.sequence = sequence
        self.events = events
        self.found = tuple(found) or tuple(Poison(index=n, reason=message) for n in range(before, before + events))
        self.output = output


class FailsTogether(PoisonEvent):
    """Cut the batch before the event at `cut`: its two parts may well be processed, one after the other."""

    def __init__(self, message: str, *, before: int, sequence: int, events: int, cut: int) -> None:
        super().__init__(message, before=before, sequence=sequence, events=events)
        self.cut = cut


class TooMuchPoison(PoisonEvent):
    """The event after the first `before` events would be one dead letter too many."""


class RangeRefused(PipelineError):
    """Executors could not process a batch that they were to read. Nothing of it was delivered; the host reads its events."""


class PySparkReplaced(ImportError):
    """Another distribution has put modules of its own into the package `pyspark`. Raised when `leasehold.pipeline.spark` is
    imported."""


class EngineUnavailable(PipelineError):
    """The Spark session or its JVM died, or a job was cancelled from outside. The batch may be tried again.

    is_away: whether its master or server does not answer, but may answer later. A starting host waits only in this case.
    """

    def __init__(self, message: str, *, is_away: bool = False) -> None:
        super().__init__(message)
        self.is_away = is_away


class SinkError(PipelineError):
    """Output that could not be delivered."""


class SinkUnavailable(SinkError):
    """Surely not applied; the same write may be tried again, after `retry_after_s` if the destination gave a time."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SinkNotFound(SinkUnavailable):
    """The sink's address leads nowhere. A running host waits, as names may fail to resolve for a while; a start refuses it."""


class SinkRejected(SinkError):
    """The destination understood and refused: a missing column, a violated constraint, too large. A retry cannot help."""


class OutputRefused(SinkRejected):
    """The output of some event violates a constraint or has a value that does not fit; that of other events would be taken.

    sequences: the `sequence` of each refused row, if the rows have that column; else any event of the batch may be to blame.
    Raises TypeError if a sequence is not a whole number, and ValueError without a message.
    """

    def __init__(self, message: str, *, sequences: Iterable[int] = ()) -> None:
        if not message.strip():
            raise ValueError("a refusal needs a message: name the row, the column and the reason")
        super().__init__(message)
        self.sequences = tuple(map(index, sequences))


class OutputSuspected(SinkError):
    """The sink has refused a batch, and it is not known yet which event is to blame. Nothing of that batch was applied; or, if
    the sink delivers at least once, some of it may have been."""


class OutputTooLarge(OutputRefused):
    """One batch is one step in the destination, and this one is too large for it. The same events in several batches may fit."""


class Fenced(PipelineError):
    """The sink knows a later owner; or the source does, if it ranks readers by epochs.

    - `epoch`: the epoch that is known there, 0 if unknown.
    - `state`: the sink state from which the next claim has to be made, so that it outranks what the sink knows; None to
      keep the lease's own.
    """

    def __init__(self, message: str, *, epoch: int = 0, state: str | None = None) -> None:
        super().__init__(message)
        self.epoch = epoch
        self.state = state


class Ambiguous(SinkError):
    """The write may have been applied, or may even be applied later. Never send anything else before the epoch is raised.

    retry_after_s: the pause that a destination without epochs (pipeline/async_sink) wants before the same is sent again.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotTrusted(PipelineError):
    """Raised by `Permit.check` at the point of send. Nothing was sent; wait for the permit, then send."""
