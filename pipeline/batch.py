"""When a batch closes: by count, by bytes, or by age. Pure."""

from __future__ import annotations

from dataclasses import dataclass

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
    """Consecutive pages of one partition that are committed together.

    start, to: it covers the positions behind `start` up to `to`. opened_at: when its first page came (Clock seconds).
    """

    partition: str
    start: str | None
    pages: tuple[Page, ...]
    opened_at: float

    @property
    def to(self) -> str:
        return self.pages[-1].to

    @property
    def events(self) -> int:
        return sum(page.events.num_rows for page in self.pages)

    @property
    def bytes(self) -> int:
        return sum(page.bytes for page in self.pages)

    @property
    def table(self) -> pa.Table:
        """All events, EVENT_SCHEMA, in one chunk: Spark takes 100 chunks three times as slowly as one."""
        return pa.concat_tables([EVENT_SCHEMA.empty_table(), *(page.events for page in self.pages)]).combine_chunks()

    def joined(self, page: Page) -> Batch:
        return Batch(self.partition, self.start, (*self.pages, page), self.opened_at)

    def head(self, events: int) -> Batch | None:
        """The batch of only the first `events` events (0 < events), or None where the feed cannot be cut there."""
        pages: list[Page] = []
        for page in self.pages:
            if events < page.events.num_rows:
                if events > 0:
                    to = page.position_after(events)
                    if to is None:
                        return None
                    pages.append(Page(page.events.slice(0, events), to))
                break
            pages.append(page)
            events -= page.events.num_rows
        return Batch(self.partition, self.start, tuple(pages), self.opened_at)


def is_full(batch: Batch, limits: BatchLimits) -> bool:
    return batch.events >= limits.events_max or batch.bytes >= limits.bytes_max


def is_due(batch: Batch, limits: BatchLimits, now: float) -> bool:
    """Whether the batch should be processed now if anybody is ready to."""
    return is_full(batch, limits) or now >= batch.opened_at + limits.age_max_s
