"""Partitions that failed here: each is left alone for a while, and then tried again, as it may have been mended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from leases.balance import Key
from leases.clock import Clock

HOLD_OFF_MAX_S = 60.0
"""A partition is left alone for 1 s, then 2, 4, ... up to this."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a partition does not go on. until: when this host will try it again (Clock seconds); count: failures in a row."""

    error: Exception
    until: float
    count: int


class Failures(Mapping[Key, Failure]):
    """The last failure of every partition that has not recovered since."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[Key, Failure] = {}

    def __getitem__(self, key: Key) -> Failure:
        return self._last[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._last)

    def __len__(self) -> int:
        return len(self._last)

    @property
    def held_off(self) -> list[Key]:
        """Those that are not to be tried yet."""
        return [key for key in self._last if self.holds_off(key)]

    def holds_off(self, key: Key) -> bool:
        return key in self._last and self._clock.monotonic() < self._last[key].until

    def failed(self, key: Key, error: Exception) -> None:
        """Once more: it is left alone for twice as long as last time."""
        count = self._last[key].count + 1 if key in self._last else 1
        self._hold_off(key, error, min(2.0 ** min(count - 1, 16), HOLD_OFF_MAX_S), count)

    def would_fail(self, key: Key, error: Exception) -> None:
        """It was not tried, as that would be in vain: left alone for as long as any."""
        self._hold_off(key, error, HOLD_OFF_MAX_S, self._last[key].count if key in self._last else 1)

    def recovered(self, key: Key) -> None:
        self._last.pop(key, None)

    def keep(self, lasts: Callable[[Key], bool]) -> None:
        """Forget those that have ended otherwise."""
        self._last = {key: failure for key, failure in self._last.items() if lasts(key)}

    def _hold_off(self, key: Key, error: Exception, for_s: float, count: int) -> None:
        self._last[key] = Failure(error, self._clock.monotonic() + for_s, count)
