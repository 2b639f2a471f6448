"""When a batch closes: by count, by bytes, or by age. Pure."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field

import pyarrow as pa

from pipeline.event import EVENT_SCHEMA, Page


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """A batch closes when it holds `events_max` events or `bytes_max` bytes, or `age_max_s` after its first event.

    age_max_s = 0 (the default) closes as soon as somebody is ready to take the batch: batches are small while the stream
    is slow and grow by themselves while it is fast.
    """

    events_max: int = 50_000
    bytes_max: int = 16 * 1024 * 1024
    age_max_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive pages of one partition that are committed together, at least one.

    start, to: it covers the positions behind `start` up to `to`. opened_at: when its first page came (Clock seconds).
    events, bytes: how much it holds. A slow stream makes a page an event, so that joining must not count them all again.
    """

    partition: str
    start: str | None
    pages: tuple[Page, ...]
    opened_at: float
    events: int = field(init=False)
    bytes: int = field(init=False)
    counted: InitVar[tuple[int, int] | None] = None

    def __post_init__(self, counted: tuple[int, int] | None) -> None:
        if counted is None:
            counted = sum(page.events.num_rows for page in self.pages), sum(page.bytes for page in self.pages)
        object.__setattr__(self, "events", counted[0])
        object.__setattr__(self, "bytes", counted[1])

    @property
    def to(self) -> str:
        return self.pages[-1].to

    @property
    def table(self) -> pa.Table:
        """All events, EVENT_SCHEMA, in one chunk: Spark takes 100 chunks three times as slowly as one."""
        return pa.concat_tables([EVENT_SCHEMA.empty_table(), *(page.events for page in self.pages)]).combine_chunks()

    def joined(self, page: Page) -> Batch:
        counted = self.events + page.events.num_rows, self.bytes + page.bytes
        return Batch(self.partition, self.start, (*self.pages, page), self.opened_at, counted)

    def head(self, events: int) -> Batch | None:
        """The batch of only the first `events` events (0 < events), or None where the feed cannot be cut there."""
        assert events > 0, "a batch without events has no position to go to"
        pages: list[Page] = []
        for page in self.pages:
            if events >= page.events.num_rows:
                pages.append(page)
                events -= page.events.num_rows
                continue
            if events > 0:
                to = page.position_after(events)
                if to is None:
                    return None
                pages.append(Page(page.events.slice(0, events), to, page.position_after))
            break
        return Batch(self.partition, self.start, tuple(pages), self.opened_at)


def is_full(batch: Batch, limits: BatchLimits) -> bool:
    return batch.events >= limits.events_max or batch.bytes >= limits.bytes_max


def is_due(batch: Batch, limits: BatchLimits, now: float) -> bool:
    """Whether the batch should be processed now if anybody is ready to."""
    return is_full(batch, limits) or now >= batch.opened_at + limits.age_max_s
