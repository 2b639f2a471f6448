"""How much an asynchronous sink holds, sends at once, and waits for. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of each partition on its own.

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
