"""What a destination gets: entries, each converted once, and with a key by which a repeated entry is recognized."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leasehold.pipeline.errors import OutputRefused
from leasehold.pipeline.tracing import TraceContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row, as the destination takes it."""

    number: int
    """Its number among the entries of its writer; a rewritten entry keeps it (`dataclasses.replace`)."""
    key: str
    """`pipeline/partition/position/index`, each percent-encoded; a repeated row has the same key."""
    value: Any
    """What the converter made of it."""
    bytes: int
    """How large it is in a request."""
    order: str | None = None
    """Entries with the same order key are sent in order; None if order does not matter."""
    sequence: int | None = None
    """The sequence of its event, from the row's column of that name."""
    trace: TraceContext | None = None
    """The context of its batch's delivery, to send with the request."""


def refused(message: str, *entries: Entry | int | None) -> OutputRefused:
    """The error for entries (or their events, by sequence) that the destination always refuses because of their contents."""
    sequences = [each.sequence if isinstance(each, Entry) else each for each in entries]
    known = [each for each in sequences if each is not None]
    return OutputRefused(message, sequences=known if len(known) == len(sequences) else ())


@dataclass(frozen=True, slots=True)
class Failed:
    """Entries to send again, and the shortest pause before that, if the destination gave one.

    is_throttled: whether they failed because the destination takes no more at a time; true if `submit` returns a plain sequence.
    If each failed for a reason of its own, sending less would not help. may_land: whether one of them may still be carried
    out (its answer was lost, or a gateway gave up waiting).
    """

    entries: Sequence[Entry]
    retry_after_s: float | None = None
    is_throttled: bool = True
    may_land: bool = False


class Destination(ABC):
    """A destination of requests."""

    @abstractmethod
    async def submit(self, entries: Sequence[Entry]) -> Sequence[Entry] | Failed:
        """Send one request. Returns the entries that failed and may be sent again, rewritten if need be.

        If it raises SinkUnavailable, Ambiguous (with `retry_after_s`) or OSError, the whole request failed, and is sent again.
        After SinkUnavailable, the failed request will certainly not be carried out. After the others, or if a call was cancelled
        because it took longer than `request_timeout_s`, the request may be. Any other exception is fatal: SinkRejected if
        requests will be refused for ever, or what `refused` returns if only some entries will be.
        """

    async def prepare(self) -> None:
        """Once per process: connect, create what is needed. Raises SinkUnavailable, SinkRejected."""

    async def close(self) -> None:
        """Release everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """What a converter makes of a row. See Entry."""

    value: Any
    bytes: int
    order: str | None = None


Convert = Callable[[Mapping[str, Any], str], Converted | None]
"""(row, its key) -> its entry; None if it needs none. Pure and quick. Raises ValueError for a row that cannot become one."""
