"""What a user may bound of a pipeline, with its defaults. Pure, and without Arrow or Spark, so that settings are read at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

REPLAY = ".replay"
"""What the name of a pipeline ends with that sends another one's dead letters through again."""
BACKOFF_S_MAX = 60.0
JSON_LEVELS_MAX = 500
"""How deep JSON may nest: half of what Python's parser takes at most on 3.11, whatever the stack below it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """A batch closes when it holds `events_max` events or `bytes_max` bytes, or `age_max_s` after its first event.

    age_max_s = 0 (the default) closes as soon as somebody is ready to take the batch: batches are small while the stream
    is slow and grow by themselves while it is fast.
    """

    events_max: int = 100_000
    bytes_max: int = 32 * 1024 * 1024
    age_max_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """attempts: how often an event must have failed before it is blamed. backoff_s: before it is tried on its own once more,
    doubled each time. most: how much poison of one batch is looked for before it is told."""

    attempts: int = 2
    backoff_s: float = 0.0
    most: int = 1

    def pause_s(self, again: int) -> float:
        return min(self.backoff_s * 2.0 ** min(again - 1, 32), BACKOFF_S_MAX) if again else 0.0


FIRST_ONE = Isolation()


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncLimits:
    """How much an asynchronous sink holds, sends at once, and waits for; of each partition on its own.

    batch_entries_max, batch_bytes_max: of one request. entry_bytes_max: a larger entry is refused. in_flight_max: requests
    at a time. buffered_entries_max: entries that were taken, and are not acknowledged without a gap; taking waits beyond it.
    buffer_age_max_s: how long an entry waits for its request to fill. request_timeout_s: how long an answer may take.
    """

    batch_entries_max: int = 100
    batch_bytes_max: int = 1024 * 1024
    entry_bytes_max: int = 256 * 1024
    in_flight_max: int = 8
    buffered_entries_max: int = 10_000
    buffer_age_max_s: float = 0.1
    request_timeout_s: float = 10.0

    @property
    def in_flight_entries_max(self) -> int:
        return self.batch_entries_max * self.in_flight_max

    @property
    def buffered_bytes_max(self) -> int:
        """Of what waits to be sent: what all requests at a time can carry."""
        return self.batch_bytes_max * self.in_flight_max

    def problems(self) -> Iterator[str]:
        """What cannot work, for people; nothing where all is well."""
        for name in self.__dataclass_fields__:
            if getattr(self, name) <= 0 and name != "buffer_age_max_s":
                yield f"{name} ({getattr(self, name)}) has to be above 0"
        if self.entry_bytes_max > self.batch_bytes_max:
            yield (
                f"entry_bytes_max ({self.entry_bytes_max}) is above batch_bytes_max ({self.batch_bytes_max}), so that an entry"
                " could fit no request: lower the one, or raise the other"
            )
        if self.buffered_entries_max < self.batch_entries_max:
            yield (
                f"buffered_entries_max ({self.buffered_entries_max}) is below batch_entries_max ({self.batch_entries_max}), so"
                " that no request could fill up: raise the one, or lower the other"
            )
