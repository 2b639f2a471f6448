"""Where documents lie, and how ranges divide: as the SDK computes it, without gaps and without losses."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from azure.cosmos.partition_key import PartitionKey, _Undefined
from hypothesis import given
from hypothesis import strategies as st

from leasehold_emulators.cosmos.container import Container
from leasehold_emulators.cosmos.epk import epk_of
from leasehold_emulators.cosmos.ranges import Range, Span, evenly, halves, middle, union
from leasehold_emulators.cosmos.refused import COMPLETING_SPLIT, RANGE_GONE, Refused
from leasehold_emulators.cosmos.writes import Draft, Write, apply

SCALARS = st.text(max_size=40) | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.booleans() | st.none()


def definition(version: int = 2) -> dict[str, Any]:
    return {"id": "tx", "partitionKey": {"paths": ["/id"], "kind": "Hash", "version": version}}


def written(container: Container, *ids: str) -> None:
    """Each in a transaction of its own."""
    for name in ids:
        draft = Draft(container, container.partition_of(container.epk([name])), 1000.0)
        apply(draft, Write(operation="Upsert", partition_key=[name], body={"id": name}))
        draft.commit()


@given(SCALARS)
def test_a_key_has_the_hash_that_the_sdk_gives_it(value: Any) -> None:
    assert epk_of([value], {"kind": "Hash", "version": 2}) == PartitionKey("/a")._get_effective_partition_key_string(
        [value]
    )


@given(st.lists(SCALARS, min_size=2, max_size=3))
def test_a_hierarchical_key_has_the_hash_that_the_sdk_gives_it(values: list[Any]) -> None:
    key = PartitionKey([f"/{i}" for i in range(len(values))])
    assert epk_of(values, {"kind": "MultiHash", "version": 2}) == key._get_effective_partition_key_string(values)


def test_a_missing_key_has_the_hash_that_the_sdk_gives_it() -> None:
    assert epk_of([{}], definition()["partitionKey"]) == PartitionKey("/a")._get_effective_partition_key_string(
        [_Undefined()]
    )


@pytest.mark.parametrize("count", [1, 3, 4, 7])
def test_ranges_follow_each_other_from_end_to_end(count: int) -> None:
    ranges = evenly(count)
    assert ranges[0].span.min == ""
    assert ranges[-1].span.max == "FF"
    assert all(left.span.max == right.span.min for left, right in itertools.pairwise(ranges))


def test_the_bounds_of_ranges_are_rounded_as_the_service_rounds_them() -> None:
    """From azure-cosmos' test of the range wrapper."""
    assert [one.span.min for one in evenly(5)][1:] == [
        "0" + "C" * 31,
        "19" + "9" * 29 + "8",
        "26" + "6" * 29 + "4",
        "3" * 31 + "0",
    ]


def test_halves_cover_their_parent_and_name_all_that_they_came_from() -> None:
    parent = Range(id="4", span=Span(min="10", max="20"), parents=("1",))
    left, right = halves(parent, middle(parent.span), ("5", "6"), since=3)
    assert (left.span.min, left.span.max, right.span.max) == ("10", right.span.min, "20")
    assert left.parents == right.parents == ("1", "4")
    assert union(left, right, "7", since=4).parents == ("1", "4", "5", "6")


def test_only_neighbours_merge_and_only_inside_a_range_is_split() -> None:
    first, _, third = evenly(3)
    with pytest.raises(ValueError, match="not neighbors"):
        union(first, third, "3", since=1)
    with pytest.raises(ValueError, match="not inside"):
        halves(first, "FF", ("3", "4"), since=1)


@given(st.lists(st.text("abcdef", min_size=1), unique=True, max_size=30), st.lists(st.integers(0, 9), max_size=6))
def test_what_was_written_stays_in_one_range_each_through_splits_and_merges(ids: list[str], moves: list[int]) -> None:
    container = Container("WjwAAYAAAAE=", definition(), 2)
    written(container, *ids)
    for move in moves:
        ranges = container.ranges
        if move % 3 and len(ranges) > 1:
            at = move % (len(ranges) - 1)
            container.merge(ranges[at + 1].id, ranges[at].id)
        else:
            container.split(ranges[move % len(ranges)].id)
    found = [(p.range, change) for p in container.partitions.values() for change in p.log]
    assert sorted(change.key.id for _, change in found) == sorted(ids)
    assert all(one.span.holds(change.epk) for one, change in found)
    assert sorted(key.id for p in container.partitions.values() for key in p.documents) == sorted(ids)


def test_lsns_go_on_where_the_parents_ended() -> None:
    container = Container("WjwAAYAAAAE=", definition(), 2)
    written(container, *(f"d{i}" for i in range(30)))
    lsns = {name: partition.lsn for name, partition in container.partitions.items()}
    child = container.merge("0", "1")
    assert container.partitions[child.id].lsn == max(lsns.values())
    written(container, "one more")
    assert container.partitions[child.id].log[-1].lsn == max(lsns.values()) + 1
    left, right = container.split(child.id)
    assert {container.partitions[r.id].lsn for r in (left, right)} == {max(lsns.values()) + 1}


def test_a_divided_range_is_completing_its_split_for_as_long_as_ordered_and_then_gone() -> None:
    container = Container("WjwAAYAAAAE=", definition(), 1)
    container.split("0", completing=2)
    substatuses = []
    for _ in range(3):
        with pytest.raises(Refused) as caught:
            container.partition("0")
        assert caught.value.status == 410
        substatuses.append(caught.value.substatus)
    assert substatuses == [COMPLETING_SPLIT, COMPLETING_SPLIT, RANGE_GONE]


def test_a_document_ends_with_its_time_to_live() -> None:
    container = Container("WjwAAYAAAAE=", definition() | {"defaultTtl": -1}, 1)
    draft = Draft(container, container.partition("0"), 1000.0)
    apply(draft, Write(operation="Create", partition_key=["lock"], body={"id": "lock", "ttl": 30}))
    apply(draft, Write(operation="Create", partition_key=["info"], body={"id": "info"}))
    draft.commit()
    container.expire(1029.9)
    assert len(container.partition("0").documents) == 2
    container.expire(1030.0)
    assert [json.loads(key.partition_key) for key in container.partition("0").documents] == [["info"]]
    assert container.partition("0").log[-1].is_expired
