"""Histograms: parts of all, estimated, and those of the last minutes."""

import pytest

from leasehold.pipeline.histogram import Histogram, RecentHistogram

BOUNDS = (1.0, 2.0, 4.0)


@pytest.mark.parametrize(
    ("counts", "part", "expected"),
    [
        ([0, 0, 0, 0], 0.5, None),
        ([4, 0, 0, 0], 0.5, 0.5),
        ([0, 10, 0, 0], 0.5, 1.5),
        ([5, 0, 5, 0], 0.5, 1.0),
        ([5, 0, 5, 0], 0.9, 3.6),
        ([0, 0, 0, 1], 0.5, 4.0),
        ([99, 0, 0, 1], 0.99, 1.0),
        ([1, 0, 0, 0], 1.0, 1.0),
    ],
)
def test_a_part_of_all_is_interpolated_within_its_bucket(
    counts: list[int], part: float, expected: float | None
) -> None:
    histogram = Histogram(BOUNDS)
    histogram.add(counts)
    assert histogram.quantile(part) == (None if expected is None else pytest.approx(expected))


def test_only_the_last_one_to_two_windows_count() -> None:
    recent = RecentHistogram(10.0, BOUNDS)
    recent.add([1, 0, 0, 0], 100.0)
    recent.add([0, 1, 0, 0], 109.0)
    assert recent.counts(109.0) == [1, 1, 0, 0]
    recent.add([0, 0, 1, 0], 110.0)
    assert recent.counts(119.0) == [1, 1, 1, 0]
    recent.add([0, 0, 0, 1], 120.0)
    assert recent.counts(120.0) == [0, 0, 1, 1]
    assert recent.counts(140.0) == [0, 0, 0, 0]
