"""What a destination is given: entries, converted once, each with a key by which a repeated one is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from pipeline.errors import OutputRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row, as the destination takes it.

    value: what the converter made of it. key: pipeline/partition/position/index, each percent-encoded; a row that comes
    again has the same. bytes: how large it is in a request. order: entries with the same are sent in their order; None
    where order does not matter. number: which entry of its writer it is; a rewritten one keeps it (`dataclasses.replace`).
    sequence: of the event that the row says it is of, by a column of that name.
    """

    number: int
    key: str
    value: Any
    bytes: int
    order: str | None = None
    sequence: int | None = None


def refused(message: str, *entries: Entry | int | None) -> OutputRefused:
    """Entries, or the sequences of their events, that the destination refuses for ever, each for what is in it."""
    sequences = [each.sequence if isinstance(each, Entry) else each for each in entries]
    known = [each for each in sequences if each is not None]
    return OutputRefused(message, sequences=known if len(known) == len(sequences) else ())


@dataclass(frozen=True, slots=True)
class Failed:
    """Entries to be sent again, and when at the earliest, where the destination said so.

    is_throttled: whether they failed since the destination takes no more at a time; a plain sequence is taken for that. Where
    each failed for a reason of its own, sending less would not help. may_land: whether one of them may still be carried out (its
    answer was lost, or a gateway gave up waiting).
    """

    entries: Sequence[Entry]
    retry_after_s: float | None = None
    is_throttled: bool = True
    may_land: bool = False


class Destination(Protocol):
    """Where requests go: this one method, and `prepare` and `close` where they are needed."""

    async def submit(self, entries: Sequence[Entry]) -> Sequence[Entry] | Failed:
        """One request. Returns the entries that failed and may be sent again, rewritten if need be.

        SinkUnavailable, Ambiguous (with `retry_after_s`) and OSError: all of it failed, and will be sent again. SinkUnavailable
        says that it will surely not be carried out. After the others, and after a request that was cancelled because it took
        longer than `request_timeout_s`, it may be. Anything else that is raised is fatal: SinkRejected where requests will be
        refused for ever, what `refused` makes where it is for some entries.
        """
        ...


@runtime_checkable
class Preparing(Protocol):
    async def prepare(self) -> None:
        """Once per process: connect, create what is needed. Raises SinkUnavailable, SinkRejected."""
        ...


@runtime_checkable
class Closing(Protocol):
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """What a converter makes of a row. See Entry."""

    value: Any
    bytes: int
    order: str | None = None


Convert = Callable[[Mapping[str, Any], str], Converted | None]
"""(row, its key) -> its entry; None where it needs none. Pure and quick. Raises ValueError for a row that cannot become one."""
