"""A batch of a partition's events: how it is cut, and when it closes (by count, by bytes, or by age). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from leasehold.pipeline.errors import FailsTogether, PoisonEvent
from leasehold.pipeline.event import EVENT_SCHEMA, Page, Receipt
from leasehold.pipeline.limits import BatchLimits


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive pages of one partition that are committed together, at least one.

    start, to: it covers the positions after `start` up to `to`. opened_at: when its first page arrived (Clock seconds).
    events, bytes: how much it holds.
    """

    partition: str
    start: str | None
    pages: tuple[Page, ...]
    opened_at: float
    events: int = field(init=False)
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", sum(page.events.num_rows for page in self.pages))
        object.__setattr__(self, "bytes", sum(page.bytes for page in self.pages))

    @property
    def to(self) -> str:
        return self.pages[-1].to

    @property
    def only(self) -> int | None:
        """The sequence of the only event, or None."""
        if self.events != 1:
            return None
        return next(int(page.events["sequence"][0].as_py()) for page in self.pages if page.events.num_rows)

    @property
    def sequences(self) -> list[int]:
        """The sequence of each event, in order."""
        return [each for page in self.pages for each in page.events.column("sequence").to_pylist()]

    @property
    def receipt(self) -> Receipt | None:
        """The charges of its pages in all, and the latest session token; None if the source gives no receipts."""
        found = [page.receipt for page in self.pages if page.receipt is not None]
        return Receipt(sum(each.request_charge for each in found), found[-1].session_token) if found else None

    @property
    def table(self) -> pa.Table:
        """All events (EVENT_SCHEMA) in one chunk: Spark takes three times as long for 100 chunks as for one."""
        return pa.concat_tables([EVENT_SCHEMA.empty_table(), *(page.events for page in self.pages)]).combine_chunks()

    def head(self, events: int) -> Batch | None:
        """A batch of only the first `events` events (0 < events), or None if the feed cannot be cut there."""
        assert events > 0, "a batch without events has no position to go to"
        pages: list[Page] = []
        for page in self.pages:
            if events >= page.events.num_rows:
                pages.append(page)
                events -= page.events.num_rows
                continue
            if events > 0:
                first = page.first(events)
                if first is None:
                    return None
                pages.append(first)
            break
        return Batch(self.partition, self.start, tuple(pages), self.opened_at)

    def without(self, places: Sequence[int]) -> Batch:
        """The batch without the events at these places, over the same positions. It may be transformed, but not cut."""
        pages, start = [], 0
        for page in self.pages:
            end = start + page.events.num_rows
            gone = [place - start for place in places if start <= place < end]
            pages.append(Page(without(page.events, gone), page.to, receipt=page.receipt) if gone else page)
            start = end
        return Batch(self.partition, self.start, tuple(pages), self.opened_at)

    def cut_at(self, events: int) -> list[Batch]:
        """Two batches: the first `events` events (0 < events), and the rest.

        If the feed cannot be cut at that place, the cut is at the last possible place before it, or else at the first one after
        it. Only the batch itself if it cannot be cut at all.
        """
        place = 0
        for page in self.pages:
            if place + page.events.num_rows > events:
                place += fitting(page, events - place, at_least_one=place == 0)
                break
            place += page.events.num_rows
        head = self.head(place) if 0 < place < self.events else None
        return [self] if head is None else [head, self._behind(head)]

    def cut(self, parts: int) -> list[Batch]:
        """`parts` batches in order, with about the same number of events each; fewer if the feed cannot be cut often enough."""
        cut: list[Batch] = []
        rest = self
        for left in range(parts, 1, -1):
            *head, rest = rest.cut_at(max(1, rest.events // left))
            cut += head
        return [*cut, rest]

    def _behind(self, head: Batch) -> Batch:
        """The rest after `head`. The last page of `head` may be only the beginning of one of these pages."""
        pages = list(self.pages[len(head.pages) - 1 :])
        taken = head.pages[-1].events.num_rows
        first = pages.pop(0)
        if taken < first.events.num_rows:
            pages.insert(0, first.behind(taken))
        return Batch(self.partition, head.to, tuple(pages), self.opened_at)


def parts_without(batch: Batch, poison: PoisonEvent) -> list[Batch]:
    """The batches to process instead of one that failed.

    Two, if its events fail only together and it can be cut. Otherwise one with the events before the poison event,
    or none if the poison event is the first, or if the feed cannot be cut there.
    """
    if isinstance(poison, FailsTogether) and len(parts := batch.cut_at(poison.cut)) == 2:
        return parts
    head = batch.head(poison.before) if poison.before else None
    return [] if head is None else [head]


def without(events: pa.Table, places: Sequence[int]) -> pa.Table:
    """All events but those at these places."""
    if not places:
        return events
    keep = np.ones(events.num_rows, dtype=bool)
    keep[np.asarray(places)] = False
    return events.filter(pa.array(keep))


def fitting(page: Page, room: int, *, at_least_one: bool) -> int:
    """How many events to take from a page that holds more than `room`: as many as fit, up to a place where the feed can be cut.

    0 if it cannot be cut within `room`; with `at_least_one`, the fewest above `room` instead, or all if it cannot be cut at all.
    """
    cuts = (n for n in range(room, 0, -1) if page.position_after(n) is not None)
    if (fits := next(cuts, 0)) or not at_least_one:
        return fits
    rows = page.events.num_rows
    return next((n for n in range(room + 1, rows) if page.position_after(n) is not None), rows)


def is_full(events: int, bytes: int, limits: BatchLimits) -> bool:
    return events >= limits.events_max or bytes >= limits.bytes_max


def due_in_s(events: int, bytes: int, opened_at: float, limits: BatchLimits, now: float) -> float:
    """How long a batch of this size may still grow before it is due; 0 if it is due now."""
    return 0.0 if is_full(events, bytes, limits) else max(0.0, opened_at + limits.age_max_s - now)
