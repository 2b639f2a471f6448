"""Which part of a container a partition is, where it is read, and who takes over from it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.pipeline.connectors.cosmos.ranges import (
    KeyRange,
    PhysicalRange,
    RangeSection,
    Successor,
    is_name,
    partition_of,
    place_of,
    span_of,
    successors,
    uncovered,
)
from leasehold.pipeline.errors import FeedError, FeedUnavailable
from leasehold.pipeline.feed import FeedPartition

LIVE = [
    PhysicalRange("3", KeyRange("", "40"), ("1", "2")),
    PhysicalRange("4", KeyRange("40", "60"), ("0",)),
    PhysicalRange("5", KeyRange("60", "FF"), ("0",)),
]


def test_a_range_is_a_partition_of_its_id_with_its_parents_and_bounds() -> None:
    assert partition_of(LIVE[0]) == FeedPartition("3", ("1", "2"), "-40")


@pytest.mark.parametrize(
    ("text", "span"), [("-FF", ("", "FF")), ("05C1-7F", ("05C1", "7F")), ("05c1-7f", ("05C1", "7F"))]
)
def test_bounds_are_read_in_either_case(text: str, span: tuple[str, str]) -> None:
    assert span_of(text) == span


@pytest.mark.parametrize(
    "text", ["", "0", "-", "7F-", "7F-7F00", "-00", "7F-05", "7F-7F", "G-H", "0-1-2", "é-f", "-" + "F" * 300, "0 -1"]
)
def test_what_is_no_bounds_is_none(text: str) -> None:
    assert span_of(text) is None


def test_names_are_ids_or_bounds() -> None:
    assert all(map(is_name, ("0", "12", "-FF", "05-7F")))
    assert not any(map(is_name, ("", "no such partition", "../0", "0\r\n", "x" * 70)))


def test_a_range_is_read_as_long_as_it_is_there() -> None:
    assert place_of("3", LIVE) == RangeSection("3")
    assert place_of("1", LIVE) is None


def test_bounds_are_read_wherever_they_lie() -> None:
    assert place_of("10-20", LIVE) == RangeSection("3", KeyRange("10", "20"))
    assert place_of("-40", LIVE) == RangeSection("3")
    assert place_of("30-50", LIVE) is None


def test_a_range_that_was_split_goes_over_to_its_children() -> None:
    children = [Successor("4", KeyRange("40", "60")), Successor("5", KeyRange("60", "FF"))]
    assert successors("0", KeyRange("40", "FF"), LIVE) == children
    assert successors("0", None, LIVE) == children  # whose bounds nobody recorded


def test_a_range_that_was_merged_goes_on_as_its_part() -> None:
    assert successors("1", KeyRange("", "20"), LIVE) == [Successor("-20", KeyRange("", "20"))]


def test_a_range_that_was_split_and_then_merged_in_part_keeps_to_what_it_was() -> None:
    parts = [Successor("30-40", KeyRange("30", "40")), Successor("4", KeyRange("40", "60"))]
    assert successors("9", KeyRange("30", "60"), LIVE) == parts


def test_bounds_that_were_cut_go_on_as_bounds() -> None:
    assert successors("20-60", None, LIVE) == [
        Successor("20-40", KeyRange("20", "40")),
        Successor("40-60", KeyRange("40", "60")),
    ]


def test_ranges_with_a_gap_are_an_account_at_work() -> None:
    with pytest.raises(FeedUnavailable, match="have gaps"):
        successors("0", KeyRange("", "FF"), [LIVE[0], LIVE[2]])
    with pytest.raises(FeedUnavailable, match="have gaps"):
        successors("20-FF", None, LIVE[:2])


def test_what_nobody_recorded_is_not_guessed_through_a_merge() -> None:
    with pytest.raises(FeedError, match="write the range's bounds into its FeedRange") as caught:
        successors("2", None, LIVE)
    assert not isinstance(caught.value, FeedUnavailable)


def test_what_never_was_is_unknown() -> None:
    with pytest.raises(FeedError, match=r"has no partition '77'.*3, 4, 5"):
        successors("77", None, LIVE)


def test_a_partition_of_which_nothing_is_held_is_itself() -> None:
    whole = partition_of(LIVE[0])
    assert uncovered(whole, []) == uncovered(whole, ["40-60", "not bounds"]) == [whole]


def test_what_is_held_is_left_out() -> None:
    whole = partition_of(PhysicalRange("7", KeyRange("", "FF")))
    assert uncovered(whole, ["-FF"]) == uncovered(whole, ["-40", "40-80", "60-FF"]) == []
    assert [part.name for part in uncovered(whole, ["20-40", "30-60"])] == ["-20", "60-FF"]


UNEVEN = [
    PhysicalRange("7", KeyRange("", "1F"), ("1",)),
    PhysicalRange("8", KeyRange("1F00", "2F80"), ("1",)),
    PhysicalRange("9", KeyRange("2F8000", "FF"), ("2",)),
]
"""As ranges of hierarchical keys are bounded: by texts of different lengths."""


@pytest.mark.parametrize(
    ("partition", "place"),
    [
        ("1F-2F80", RangeSection("8")),
        ("1F0000-2F8000", RangeSection("8")),
        ("00-1F0", RangeSection("7")),
        ("1F-2F", RangeSection("8", KeyRange("1F", "2F"))),
        ("2F8-FF00", RangeSection("9")),
        ("1E-1F01", None),
    ],
)
def test_bounds_of_any_length_are_compared_as_if_they_were_padded(partition: str, place: RangeSection | None) -> None:
    assert place_of(partition, UNEVEN) == place


def test_successors_of_bounds_of_other_lengths_have_no_gap() -> None:
    heirs = [Successor("7", KeyRange("", "1F")), Successor("8", KeyRange("1F00", "2F80"))]
    for mine in (KeyRange("", "2F8"), KeyRange("00", "2F8000")):
        found = successors("1", mine, UNEVEN)
        assert [heir.name for heir in found] == ["7", "8"]
        assert all(heir.span.is_same(expected.span) for heir, expected in zip(found, heirs, strict=True))
    assert successors("1", None, UNEVEN) == heirs
    assert [heir.name for heir in successors("10-FF", None, UNEVEN)] == ["10-1F", "1F00-2F80", "2F8000-FF"]


def test_what_is_held_under_bounds_of_other_lengths_is_left_out() -> None:
    whole = partition_of(PhysicalRange("7", KeyRange("", "FF")))
    assert uncovered(whole, ["00-1F00", "1F-2F8", "2F80-FF00"]) == []
    assert [part.name for part in uncovered(whole, ["00-1F00", "20-FF0"])] == ["1F00-20"]


bounds = st.integers(1, 14).map("{:X}0".format)


@given(st.sets(bounds), st.sets(bounds), bounds, bounds)
def test_successors_are_exactly_what_the_partition_was(first: set[str], now: set[str], a: str, b: str) -> None:
    """Whatever the ranges were and are: no gap, no overlap, and each successor has a place."""
    low, high = sorted((a, b))
    mine = KeyRange("" if low == high else low, high)
    ends = [*sorted(now), "FF"]
    live = [
        PhysicalRange(str(100 + n), KeyRange(x, y)) for n, (x, y) in enumerate(zip(["", *ends], ends, strict=False))
    ]
    for name, scope in (("0", mine), (str(mine), None)):
        heirs = successors(name, scope, live)
        spans = [heir.span for heir in heirs]
        assert (spans[0].min, spans[-1].max) == mine
        assert all(x.max == y.min for x, y in pairwise(spans))
        for heir in heirs:
            place = place_of(heir.name, live)
            assert place is not None
            whole = next(each.span for each in live if each.id == place.range_id)
            assert (place.span or whole) == heir.span
