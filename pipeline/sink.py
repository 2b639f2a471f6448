"""A sink: where output goes, together with its position.

A sink that holds its position (`holds_position`) stores output and position in one atomic step, refuses epochs older than the
newest that it has seen, and decides where a partition stands. Any other sink gets every batch at least once.
Test each sink with `leasehold.pipeline.contract.SinkContract`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from shlex import quote
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import pyarrow as pa

from leasehold.common.standing import Standing
from leasehold.pipeline.endpoint import Endpoint, endpoint_of
from leasehold.pipeline.errors import Ambiguous, NotTrusted, Poison
from leasehold.pipeline.event import Receipt
from leasehold.pipeline.staging import StagedPart, Stager
from leasehold.pipeline.tracing import TraceContext

if TYPE_CHECKING:
    from leasehold.pipeline.async_sink.stats import RequestStats
    from leasehold.pipeline.handlers.stats import HandlerStats

T = TypeVar("T")

INTERFACE = 1
"""Version of the sink interface: raised when an existing class would no longer work (docs/plugins.md)."""

SENDS_MAX = 3
"""How often the same is sent if its answers are lost. After that, the next claim has to settle it."""

CloseReason = Literal["shutdown", "lost", "stolen", "gone", "failed"]
"""Why a writer is closed.

- `shutdown`: this host released the lease (a stop, a handoff, or a pause).
- `lost`: an operator released or reset the lease, or its document is gone.
- `stolen`: another owner has it.
- `gone`: its partition ended.
- `failed`: an error of feed, transform or sink.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimReports:
    """The receivers of what a sink reports about a claim: `Claim.report_progress` and `Claim.report_wait`."""

    progress: Callable[[], None] = lambda: None
    wait: Callable[[float], None] = lambda seconds: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What an owner gives its sink when it opens a writer."""

    pipeline: str
    partition: str
    owner: str
    epoch: int
    generation: int
    continuation: str | None
    """The position in the lease. `state` is the sink state in the lease, as `claimed` made it for this epoch."""
    state: str
    compare: Callable[[str | None, str | None], int]
    """Orders the feed's positions."""
    reports: ClaimReports = field(default_factory=ClaimReports)

    def report_progress(self) -> None:
        """To be called whenever a long `open` advances.

        An `open` that neither ends nor reports for `batch_timeout_s` is cancelled.
        """
        self.reports.progress()

    def report_wait(self, seconds: float) -> None:
        """To be called by a buffering writer that advances without deliveries, for example after a failed attempt.

        The present wait of the writer ends within this many seconds in any case, and they do not count towards `batch_timeout_s`.
        """
        self.reports.wait(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What one batch became.

    - `start`, `to`: the batch covers the positions after `start` up to `to`.
    """

    table: pa.Table
    """The transform's output for this partition (columns are the transform's; without a transform, EVENT_SCHEMA)."""
    start: str | None
    to: str
    events: int
    """How many events the batch held, dead ones included."""
    dead: pa.Table | None = None
    """Events that could not be processed and have no dead letter yet (DEAD_SCHEMA of leasehold.pipeline.dead_letters.record).
    Only for writers that keep dead letters: they store them before the position moves."""
    staged: tuple[StagedPart, ...] = ()
    """Rows that executors have staged at the destination, in their order; `table` is empty then. Only for writers that make a
    stager."""
    source: pa.Table | None = None
    """The events that it was made from (EVENT_SCHEMA), for writers that park events; otherwise None."""
    receipt: Receipt | None = None
    """The source's receipt for what was read; None if it gives none, or if executors read."""
    trace: TraceContext | None = None
    """The context to publish in every event or request; None for none. It stays the same when the output is sent again,
    because identical bytes settle a send whose answer was lost."""

    @property
    def rows(self) -> int:
        return int(self.table.num_rows) + sum(part.rows for part in self.staged)


class Permit(Protocol):
    """Permission to send, valid while the lease's trust window is open."""

    def check(self) -> None:
        """To be called at the point of send, with nothing awaited in between. Raises NotTrusted."""
        ...

    async def wait_until_granted(self) -> None:
        """Returns once sending is allowed. Never returns if the lease is lost: the caller is cancelled instead."""
        ...


@contextmanager
def checked_until_cancelled(permit: Permit) -> Iterator[Callable[[], None]]:
    """Yields what a thread calls right before it sends, for a caller that awaits the thread within this context.

    The call raises NotTrusted if trust has run out by then, or if the caller was cancelled and has left.
    """
    has_left = False

    def check() -> None:
        if has_left:
            raise NotTrusted("the write was cancelled before it was sent")
        permit.check()

    try:
        yield check
    except asyncio.CancelledError:
        has_left = True
        raise


def settle(send: Callable[[], T], *, failed: type[Exception], uncertain: type[Exception]) -> T:
    """Send up to SENDS_MAX times until the outcome is known: sending the same again settles what may have been stored (R3).

    failed: raised by `send` if nothing was stored. uncertain: raised by it if something may have been. Raises Ambiguous, or, if
    nothing was stored, `failed` or NotTrusted.
    """
    doubt: Exception | None = None
    for _ in range(SENDS_MAX):
        try:
            return send()
        except uncertain as error:
            doubt = error
        except (failed, NotTrusted) as error:
            if doubt is None:
                raise
            raise Ambiguous(f"{doubt}; it cannot be sent again now: {error}") from error
    raise Ambiguous(f"{doubt}, {SENDS_MAX} times") from doubt


Park = Callable[[Output, Sequence[Poison], Permit], Awaitable[None]]
"""Keeps events of an output's `source`, given by their indices there, as dead letters.

Raises NotTrusted, Fenced, Ambiguous, SinkUnavailable, SinkRejected.
"""


class SinkWriter(ABC):
    """One claim's way into the sink. Writes come one at a time, and each starts where the one before ended.

    If its sink does not hold its position, a writer may return from `write` once it has taken the output, and deliver it during
    the writes that follow. It then defines `acknowledged`, `wait_for_progress` and `flush`.
    """

    @property
    @abstractmethod
    def position(self) -> str | None:
        """The position up to which the sink holds output: at first where the work begins, then the `to` of the last write that is
        delivered together with all writes before it."""

    @property
    @abstractmethod
    def state(self) -> str:
        """What to keep in the lease document with that position."""

    @abstractmethod
    async def write(self, output: Output, permit: Permit) -> None:
        """Write all of it or nothing, with `permit.check()` right before the send.

        Raises NotTrusted, Fenced, Ambiguous, SinkUnavailable, SinkRejected.
        """

    @abstractmethod
    async def end(self, permit: Permit) -> None:
        """The partition has ended: refuse later writes for it from any writer. Raises as `write` does."""

    @abstractmethod
    async def close(self, reason: CloseReason) -> None: ...

    buried: Collection[int] | None = None
    """For a writer that takes an output's dead letters: the sequences of events after `position` whose dead letters are kept
    already, because the batch that was to move the position past them was not written. They are left out of what is transformed,
    and their letters are not written again. None: it takes no dead letters."""

    parks: bool = False
    """Whether it finds out only during delivery which events cannot be processed, and parks them."""

    parked: int = 0
    """How many events it has parked."""

    def park_with(self, park: Park) -> None:
        """Called once, before the first write, if dead letters are kept; only for a writer that parks events."""

    @property
    def place(self) -> str | None:
        """The partition of the destination that holds the output, if its name differs from that of the feed's partition."""
        return None

    async def make_stager(self, start: str | None, columns: pa.Schema) -> Stager | None:
        """A stager for executors' output of the batch that begins at `start`; None if its rows have to pass through the host.

        Raises SinkUnavailable, SinkRejected.
        """
        return None

    def parts(self, output: Output) -> int:
        """Into how many outputs this one should be cut so that the destination takes each in one step; 1 if it fits."""
        return 1

    async def follow(self) -> None:
        """Bring `state` up to date, if it ages while others write to the destination.

        Called once per renew interval while the partition is idle; a batch may be written meanwhile. A destination that does not
        answer is not an error: the state stays as it is. Raises Fenced, Ambiguous or SinkUnavailable if only another claim helps;
        another error ends the owner's work.
        """

    @property
    def is_buffering(self) -> bool:
        return type(self).flush is not SinkWriter.flush

    @property
    def acknowledged(self) -> int:
        """How many rows are delivered so far. A rise shows that a buffering writer makes progress."""
        return 0

    async def wait_for_progress(self) -> None:
        """Returns once something was delivered since the last call. Raises as `write` does."""

    async def flush(self) -> None:
        """Returns once everything is delivered. Raises as `write` does."""


class Sink(ABC):
    """A destination. An owner first opens a writer, which delivers one batch after the other.

    All methods raise only SinkError and its subclasses; `open` also raises Fenced.
    """

    holds_position: bool

    @property
    @abstractmethod
    def identity(self) -> str:
        """The destination, without secrets: two settings with one identity share their positions."""

    @property
    def endpoint(self) -> Endpoint:
        """The destination, for telemetry."""
        return endpoint_of(self.identity, "other")

    @property
    def handler_stats(self) -> HandlerStats | None:
        """For metrics, if it calls a handler side by side."""
        return None

    @property
    def request_stats(self) -> RequestStats | None:
        """For metrics, if it sends asynchronous requests."""
        return None

    @abstractmethod
    def claimed(self, state: str) -> str:
        """The sink state of the next claim (a raised owner level, say), made from that of the last claim. Pure.

        It is written by the same compare-and-swap that raises the lease's epoch.
        """

    @abstractmethod
    async def prepare(self) -> None:
        """Once per process, before any `open`: connect, create what is needed. Raises SinkRejected, and SinkUnavailable,
        after which it is called again."""

    async def check_columns(self, columns: pa.Schema) -> None:
        """Check that the destination takes output with these columns, as far as that is known without rows. Only after `prepare`.

        Raises SinkRejected, SinkUnavailable.
        """

    @abstractmethod
    async def open(self, claim: Claim) -> SinkWriter:
        """Fence older epochs first, then read the position. Raises Fenced, SinkUnavailable, SinkRejected."""

    @abstractmethod
    async def close(self) -> None: ...

    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        """The position that the sink holds, for moving leases. This only reads: nothing is created or fenced.

        None if there is no position. Sinks that cannot report positions do not define this. Raises SinkUnavailable, SinkRejected.
        """
        return None

    async def probe(self, pipeline: str, partition: str) -> None:
        """Check that the destination can be reached now; nothing is created or fenced.

        If it takes too long, the host counts as unfit for the destination. The default calls `standing`: a sink without that
        cannot be probed. Raises SinkUnavailable, SinkRejected.
        """
        await self.standing(pipeline, partition)

    @property
    def reports_standing(self) -> bool:
        return type(self).standing is not Sink.standing


def to_write_again(claim: Claim) -> str:
    """Advice if output was deleted."""
    return (
        f"deliver all its events again: {reset_command(claim, 'earliest')} (instead of the partition, --all resets all of the"
        " pipeline)"
    )


def reset_command(claim: Claim, to: str) -> str:
    """The command for people. The claim of a box of dead letters has its pipeline's name, a slash, and a suffix."""
    pipeline, partition = quote(claim.pipeline.partition("/")[0]), quote(claim.partition)
    return f"`leasehold leases reset FILE {pipeline} {partition} --to {quote(to)} --yes`"
