"""The event table: what every feed yields and every transform sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pyarrow as pa

EVENT_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.string(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("offset", pa.string(), nullable=False),
        pa.field("enqueued_time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("key", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
        pa.field("operation", pa.string()),
    ]
)
"""The columns of events:

- `partition`: the feed's partition.
- `sequence`: strictly increasing within the partition.
- `offset`: where the source keeps the event, for people (a file's line, a log's number).
- `enqueued_time`: when the source took it.
- `key`: the event's own key.
- `body`: its bytes.
- `properties`: what the producer sent in addition to the body.
- `operation`: `create`, `replace` or `delete` if the feed knows; `upsert` if it knows only that the object exists now;
  otherwise null.
"""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a source such as Cosmos DB answers in addition to events: the request units that it charged, and a session token."""

    request_charge: float
    session_token: str | None


@dataclass(frozen=True, slots=True)
class Page:
    """Some consecutive events of one partition."""

    events: pa.Table
    """EVENT_SCHEMA, in sequence order; may be empty (the position moved past records that are not events)."""
    to: str
    """The position just after the last of them; opening the feed there yields what follows."""
    position_after: Callable[[int], str | None] = field(default=lambda n: None)
    """Returns the position just after the first n events (0 < n < len), or None if the feed cannot be cut there."""
    malformed: str | None = None
    """Why the page's only event is malformed. The event holds the record as it was read, for dead letters only."""
    receipt: Receipt | None = None
    """From the read that returned the page's first event; None if the source gives none."""
    bytes: int = field(init=False)
    """Size of the events in memory."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", int(self.events.nbytes))  # once: Arrow counts slowly

    def first(self, n: int) -> Page | None:
        """The first n events (0 < n < len), without copying them; None if the feed cannot be cut there."""
        to = self.position_after(n)
        return None if to is None else replace(self, events=self.events.slice(0, n), to=to)

    def behind(self, n: int) -> Page:
        """The page without its first n events (0 < n < len), without copying the others."""
        after = self.position_after
        whole, taken = (after.whole, after.taken) if isinstance(after, _Behind) else (after, 0)
        receipt = None if self.receipt is None else replace(self.receipt, request_charge=0.0)
        return replace(self, events=self.events.slice(n), position_after=_Behind(whole, taken + n), receipt=receipt)


@dataclass(frozen=True, slots=True)
class _Behind:
    """`position_after` of the rest of a page. Not a closure in a closure: a page may be cut ten thousand times."""

    whole: Callable[[int], str | None]
    taken: int

    def __call__(self, n: int) -> str | None:
        return self.whole(self.taken + n)
