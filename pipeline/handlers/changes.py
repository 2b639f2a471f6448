"""What a handler is called with: documents, events, rows or a table, and the context of the call. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from leasehold.common.nesting import NestedTooDeeply, parsed_json
from leasehold.pipeline.errors import OutputRefused, SinkRejected, SinkUnavailable
from leasehold.pipeline.limits import JSON_LEVELS_MAX

if TYPE_CHECKING:
    import pyarrow as pa

    from leasehold.pipeline.event import Receipt
    from leasehold.pipeline.sink import Claim
    from leasehold.pipeline.tracing import TraceContext

Gets = Literal["documents", "events", "rows", "table"]


class LeaseLost(SinkRejected):
    """This host no longer has the lease: the next owner gets what is not checkpointed. Raised by `Context.checkpoint`."""


class Retry(SinkUnavailable):
    """Raise it in a handler to be called again with the same changes.

    after_s: the shortest pause before that; by default, pauses grow with each failure in a row. Raises ValueError.
    """

    def __init__(self, message: str = "the handler raised Retry", *, after_s: float | None = None) -> None:
        if not isinstance(message, str):
            raise ValueError(f"`Retry` takes seconds by name: write Retry(after_s={message or 5})")
        super().__init__(message)
        if not _is_pause(after_s):
            raise ValueError(f"`after_s` of `Retry` is {after_s!r}: give it seconds, from 0 on, or leave it out")
        self.retry_after_s = after_s


def _is_pause(given: object) -> bool:
    return given is None or (isinstance(given, int | float) and 0 <= given < inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event as the feed has it.

    - `sequence`: grows within the partition. `offset`: where the source keeps the event.
    - `operation`: `create`, `replace`, `upsert` or `delete`; None if the feed does not know.
    """

    partition: str
    sequence: int
    offset: str
    enqueued_time: datetime
    key: str | None
    body: bytes | None
    properties: Mapping[str, str]
    operation: str | None

    def json(self) -> Any:
        """The body, parsed. Raises ValueError if it is not JSON."""
        return _parsed(self.body)


class Document(dict[str, Any]):
    """A document of Cosmos DB, and the `sequence` of its change."""

    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerLease:
    """The lease that a handler is called for.

    - `acknowledge`: called with a sequence up to which all is processed; None unless the position depends on such calls.
    - `is_released`: whether this host has released or lost it.
    """

    pipeline: str
    partition: str
    owner: str
    epoch: int
    generation: int
    acknowledge: Callable[[int], Awaitable[None]] | None = field(default=None, repr=False, compare=False)
    is_released: Callable[[], bool] = field(default=lambda: False, repr=False, compare=False)

    @classmethod
    def of(
        cls, claim: Claim, *, acknowledge: Callable[[int], Awaitable[None]] | None, is_released: Callable[[], bool]
    ) -> HandlerLease:
        return cls(
            pipeline=claim.pipeline,
            partition=claim.partition,
            owner=claim.owner,
            epoch=claim.epoch,
            generation=claim.generation,
            acknowledge=acknowledge,
            is_released=is_released,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a handler learns about its call, in addition to the changes."""

    lease: HandlerLease
    position: str | None
    """The position up to which everything is processed; the changes follow it."""
    to: str | None = None
    """The position after the last of the changes; None in `open` and `close`, and with `parallel`."""
    trace: TraceContext | None = None
    """The trace context (W3C) of the delivery; None if traces are off."""
    receipt: Receipt | None = None
    """The source's receipt for what was read; None if it gives none."""
    key: str | None = None
    """With `parallel`, the key of the changes."""
    attempt: int = 1
    """With `parallel`, which call with the first of the changes this is, from 1 on."""

    @property
    def pipeline(self) -> str:
        return self.lease.pipeline

    @property
    def partition(self) -> str:
        return self.lease.partition

    @property
    def owner(self) -> str:
        return self.lease.owner

    @property
    def epoch(self) -> int:
        return self.lease.epoch

    @property
    def request_charge(self) -> float | None:
        """The request units that Cosmos DB charged for reading these changes; None for other feeds.

        With `parallel`, the charge for the batch that holds the last of these changes.
        """
        return None if self.receipt is None else self.receipt.request_charge

    @property
    def session_token(self) -> str | None:
        """From Cosmos DB's answer with the last of these changes. A client that reads with this token sees the changes."""
        return None if self.receipt is None else self.receipt.session_token

    @property
    def is_lost(self) -> bool:
        """Whether this host has released or lost the partition: its next owner gets what is not checkpointed."""
        return self.lease.is_released()

    async def checkpoint(self, change: Any) -> None:
        """Everything up to and including this change is processed. Needs `checkpoint_s="manual"`.

        change: one that the handler was called with, or its sequence. Raises LeaseLost, and SinkRejected for anything else.
        """
        if self.lease.acknowledge is None:
            raise SinkRejected(
                f"pipeline '{self.pipeline}': `context.checkpoint` needs `checkpoint_s: manual`; otherwise a batch is safe when"
                " the handler returns: set it, or remove the call"
            )
        await self.lease.acknowledge(sequence_of(change, self.partition))


def sequence_of(change: Any, partition: str) -> int:
    """The sequence of a change of that partition, or the sequence itself if it is given. Raises SinkRejected."""
    if type(change) is dict:  # a row; a copied document may have a `sequence` of its own
        found = change.get("sequence") if change.get("partition") == partition else None
    else:
        found = getattr(change, "sequence", change)
    if getattr(change, "partition", partition) != partition:
        raise SinkRejected(
            f"`context.checkpoint` of partition '{partition}' got a change of partition '{change.partition}': call it on the"
            " context that came with the change"
        )
    if not isinstance(found, int) or isinstance(found, bool):
        raise SinkRejected(
            f"`context.checkpoint` got something of type {type(change).__name__}: give it a change that the handler was called"
            " with, not a copy of it, or its sequence"
        )
    return found


def changes_of(table: pa.Table, gets: Gets) -> Any:
    """Raises SinkRejected (OutputRefused, which names the event)."""
    return table if gets == "table" else changes_in(table.to_pylist(), gets)


def changes_in(rows: Sequence[Mapping[str, Any]], gets: Gets) -> list[Any]:
    """Raises SinkRejected (OutputRefused, which names the event)."""
    if gets == "rows":
        return list(rows)
    return [_document(row) if gets == "documents" else _event(row) for row in rows]


def _event(row: Mapping[str, Any]) -> Event:
    return Event(**{**row, "properties": dict(row["properties"] or ())})


def _document(row: Mapping[str, Any]) -> Document:
    try:
        parsed = _parsed(row["body"])
    except (ValueError, NestedTooDeeply) as error:
        raise _no_document(row, str(error)) from None
    if not isinstance(parsed, dict):
        raise _no_document(row, f"its body is JSON of type {type(parsed).__name__}")
    document = Document(parsed)
    document.sequence = row["sequence"]
    return document


def _no_document(row: Mapping[str, Any], why: str) -> OutputRefused:
    sequence = row["sequence"]
    where = f"the event with sequence {sequence} of partition '{row['partition']}'"
    text = f"{where} cannot be a document, because {why}: set `gets: events`"
    return OutputRefused(text, sequences=[sequence])


def _parsed(body: bytes | None) -> Any:
    if body is None:
        raise ValueError("it has no body")
    return parsed_json(body, JSON_LEVELS_MAX)
