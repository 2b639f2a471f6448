"""Protocol F's marker, as a broker without an index needs it."""

from collections.abc import Iterable

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.pipeline.errors import PositionLost
from leasehold.pipeline.markers import PREFIX, Marker, Search, lease_of, marker_in, without_markers

MAP = pa.map_(pa.string(), pa.string())
TEXTS = st.text(max_size=5)
MARKERS = st.builds(
    Marker,
    lease=TEXTS,
    generation=st.integers(0, 2**63 - 1),
    level=st.integers(0, 2**15 - 1),
    start=st.none() | TEXTS,
    to=TEXTS,
    count=st.integers(1, 4),
)


def marker(start: int, to: int, lease: str = "bank/p", generation: int = 0, level: int = 1, count: int = 2) -> Marker:
    return Marker(lease=lease, generation=generation, level=level, start=str(start), to=str(to), count=count)


def batch(of: Marker) -> list[dict[str, str]]:
    return [{**of.properties(), PREFIX + "index": str(index)} for index in range(of.count)]


def newest_complete(tail: Iterable[dict[str, str]], lease: str, generation: int) -> Marker | None:
    search = Search(lease, generation)
    for properties in tail:
        search.see(properties)
    return search.newest


@given(MARKERS)
def test_an_event_tells_its_marker_under_the_reserved_prefix_alone(given: Marker) -> None:
    properties = batch(given)[0]
    assert all(name.startswith(PREFIX) for name in properties)
    assert marker_in({**properties, "lease": "a user's"}) == given


@pytest.mark.parametrize("spoilt", ["lease", "generation", "level", "to", "count"])
@pytest.mark.parametrize("value", [None, "", "-1", "1" * 20, "x", "²"])
def test_what_is_not_a_whole_marker_is_none(spoilt: str, value: str | None) -> None:
    properties = {name: text for name, text in batch(marker(0, 2))[0].items() if name != PREFIX + spoilt}
    if value is not None:
        properties[PREFIX + spoilt] = value
    found = marker_in(properties)
    assert found is None or (spoilt in ("lease", "to") and value is not None)


@given(st.tuples(TEXTS, TEXTS), st.tuples(TEXTS, TEXTS))
def test_no_two_leases_share_a_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (lease_of(*one) == lease_of(*other)) == (one == other)


@given(st.lists(MARKERS, max_size=6), st.integers(0, 20), st.integers(0, 20))
def test_the_newest_marker_is_that_of_the_last_batch_whose_events_are_all_there(
    markers: list[Marker], cut_before: int, cut_behind: int
) -> None:
    tail = [(of, properties) for of in markers for properties in batch(of)]
    tail = tail[cut_before : len(tail) - cut_behind]
    for of in markers:
        whole = [m for m in markers if (m.lease, m.generation) == (of.lease, of.generation)]
        expected = None
        at = -cut_before
        for m in markers:
            if m in whole and at >= 0 and at + m.count <= len(tail):
                expected = m
            at += m.count
        assert newest_complete([properties for _, properties in tail], of.lease, of.generation) == expected


def test_a_batch_counts_only_once_all_its_events_are_there() -> None:
    whole, cut = marker(0, 2), marker(2, 5, count=3)
    assert newest_complete([*batch(whole), *batch(cut)[:2]], "bank/p", 0) == whole
    assert newest_complete([*batch(whole), *batch(cut)], "bank/p", 0) == cut
    assert newest_complete(batch(cut)[1:], "bank/p", 0) is None


def test_events_of_others_may_lie_between() -> None:
    ours, theirs = batch(marker(0, 2)), batch(marker(7, 9, lease="bank/q"))
    older = batch(marker(4, 6, generation=1))
    tail = [{}, ours[0], theirs[0], older[0], {"leasehold-lease": "x"}, ours[1], theirs[1]]
    assert newest_complete(tail, "bank/p", 0) == marker(0, 2)
    assert newest_complete(tail, "bank/p", 1) is None
    assert newest_complete(tail, "bank/r", 0) is None


def test_a_batch_that_was_begun_twice_counts_by_its_second_beginning() -> None:
    first, second = marker(0, 2, level=1), marker(0, 3, level=2, count=3)
    assert newest_complete([batch(first)[0], *batch(second)], "bank/p", 0) == second
    assert newest_complete([batch(first)[0], *batch(second)[:2], batch(first)[1]], "bank/p", 0) is None
    assert newest_complete([batch(first)[0], batch(marker(0, 2, level=2))[1]], "bank/p", 0) is None


def by_number(a: str | None, b: str | None) -> int:
    try:
        return int(a or -1) - int(b or -1)
    except ValueError as error:
        raise PositionLost(str(error)) from error


def test_a_copy_of_an_earlier_batch_does_not_move_the_position_back(caplog: pytest.LogCaptureFixture) -> None:
    first, second, copied = marker(0, 2), marker(2, 4), marker(0, 2)
    search = Search("bank/p", 0, by_number)
    for properties in (*batch(first), *batch(second), *batch(copied), *batch(second)):
        search.see(properties)
    assert search.newest == second
    assert caplog.text.count("a marker of lease 'bank/p' is a copy of an earlier one") == 2


def test_a_marker_that_names_no_position_of_the_feed_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    search = Search("bank/p", 0, by_number)
    made_up = Marker(lease="bank/p", generation=0, level=1, start="2", to="x", count=1)
    for properties in (*batch(made_up), *batch(marker(0, 2)), *batch(made_up)):
        search.see(properties)
    assert search.newest == marker(0, 2)
    assert "names no position" in caplog.text


@settings(deadline=None)  # Arrow takes its time on the first call
@given(
    st.lists(st.none() | st.lists(st.tuples(st.sampled_from(["a", "leasehold-to", "leasehold"]), st.none() | TEXTS))),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_publishing_again_leaves_users_properties_alone(
    maps: list[list[tuple[str, str | None]] | None], skip: int, drop: int
) -> None:
    given = pa.array(maps, MAP)[skip : max(len(maps) - drop, skip)]
    kept = without_markers(given)
    kept.validate(full=True)
    assert kept.type == MAP
    assert kept.to_pylist() == [
        None if entries is None else [entry for entry in entries if entry[0] != "leasehold-to"]
        for entries in given.to_pylist()
    ]
