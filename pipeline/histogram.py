"""Histograms of durations, for metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(slots=True)
class Histogram:
    """A histogram of durations. counts: one for each of the bounds, and one for what took longer than all of them."""

    bounds_s: tuple[float, ...] = BUCKETS_S
    counts: list[int] = field(init=False)
    sum_s: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds_s) + 1)

    def observe(self, seconds: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds_s, seconds)] += count
        self.sum_s += seconds * count

    def observe_all(self, seconds: npt.NDArray[np.float64]) -> None:
        """Observe many durations, in some nanoseconds each."""
        found = np.bincount(np.searchsorted(self.bounds_s, seconds), minlength=len(self.counts))
        self.counts = [count + int(more) for count, more in zip(self.counts, found, strict=True)]
        self.sum_s += float(seconds.sum())

    def add(self, counts: Sequence[int], sum_s: float = 0.0) -> None:
        """counts: of another histogram with the same bounds."""
        self.counts = [count + more for count, more in zip(self.counts, counts, strict=True)]
        self.sum_s += sum_s

    def quantile(self, part: float) -> float | None:
        """The duration that this part (0 to 1) of all did not exceed, interpolated within its bucket as Prometheus does.

        None if nothing was observed. Above the last bound, it is that bound.
        """
        cumulative = self.cumulative
        rank = part * cumulative[-1]
        if not cumulative[-1]:
            return None
        at = bisect_left(cumulative, rank)
        if at == len(self.bounds_s):
            return self.bounds_s[-1]
        lower, below = (self.bounds_s[at - 1], cumulative[at - 1]) if at else (0.0, 0)
        return lower + (self.bounds_s[at] - lower) * (rank - below) / max(1, self.counts[at])

    @property
    def cumulative(self) -> list[int]:
        """For each of the bounds, how many durations did not exceed it; the last number is all of them."""
        return list(accumulate(self.counts))


@dataclass(slots=True)
class RecentHistogram:
    """Counts what was observed in the last one to two windows. now_s: by one monotonic clock."""

    window_s: float
    bounds_s: tuple[float, ...] = BUCKETS_S
    _began_s: float = float("-inf")
    _newer: Histogram = field(init=False)
    _older: Histogram = field(init=False)

    def __post_init__(self) -> None:
        self._newer, self._older = Histogram(self.bounds_s), Histogram(self.bounds_s)

    def add(self, counts: Sequence[int], now_s: float) -> None:
        self._turn(now_s)
        self._newer.add(counts)

    def counts(self, now_s: float) -> list[int]:
        self._turn(now_s)
        return [newer + older for newer, older in zip(self._newer.counts, self._older.counts, strict=True)]

    def _turn(self, now_s: float) -> None:
        if now_s < self._began_s + self.window_s:
            return
        is_next = now_s < self._began_s + 2 * self.window_s
        self._older = self._newer if is_next else Histogram(self.bounds_s)
        self._newer, self._began_s = Histogram(self.bounds_s), now_s
