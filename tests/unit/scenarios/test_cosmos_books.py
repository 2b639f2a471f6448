"""What the bank over Cosmos DB is judged by: silences of owners, and lag, told from what the wire server has kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from lab.scenarios.cosmos_books import Writing, beginnings, lag, signs_of_life, silences, writings
from plugins_cosmos import Range


def writing(at: float, tick: int, owner: str | None = "a", partition: str = "0", **more: Any) -> Writing:
    usual = {"low": "", "high": "FF", "incarnation": owner, "epoch": 1, "continuation": None}
    return Writing(at=at, partition=partition, owner=owner, tick=tick, **{**usual, **more})


def longest(found: list[Writing], since: float = 0, until: float = 10) -> dict[str, float]:
    """By lower bound."""
    return {silence.low: silence.lasted_s for silence in silences(found, since, until)}


def test_silence_is_the_longest_time_between_two_renewals() -> None:
    assert longest([writing(at, tick) for tick, at in enumerate([0.5, 2, 6, 9])]) == {"": 4}


def test_silence_begins_with_the_day_and_ends_with_it() -> None:
    assert longest([writing(7, 1)]) == {"": 7}
    assert longest([writing(3, 1)]) == {"": 7}


def test_what_others_write_into_a_lease_breaks_no_silence() -> None:
    renewed = [writing(1, 1), writing(9, 2)]
    assert longest([renewed[0], writing(5, 1), renewed[1]]) == {"": 8}


def test_a_release_is_an_owner_s_and_what_is_written_while_nobody_owns_it_is_not() -> None:
    history = [writing(1, 1), writing(2, 2, owner=None), writing(8, 3, owner=None)]
    assert [sign.at for sign in signs_of_life(history)] == [1, 2]


def test_a_range_goes_on_in_its_children() -> None:
    parent = [writing(1, 1), writing(2, 2, owner=None, closed=True)]
    assert beginnings([*parent, replace(parent[1], continuation='"7"', children=("4", "5"))]) == {
        "4": '"7"',
        "5": '"7"',
    }
    low, high = (
        writing(at, 1, partition=name, low=bounds[0], high=bounds[1])
        for name, at, bounds in (("4", 3, ("", "80")), ("5", 8, ("80", "FF")))
    )
    assert longest([*parent, low, high]) == {"": 7, "80": 6}


def test_writings_are_those_of_one_pipeline_in_the_order_of_time() -> None:
    def version(at: float, id: str, **ours: Any) -> dict[str, Any]:
        body = {
            "id": id,
            "LeaseToken": id[-1],
            "FeedRange": {"Range": {"min": "", "max": "FF"}},
            "Owner": "a",
            "ContinuationToken": None,
            "leasehold": {"epoch": 1, "tick": 1, **ours},
        }
        return {"ts": at, "id": id, "body": body}

    gone = {"ts": 1.5, "id": "bank..0", "body": None}
    found = writings([version(2, "bank..1"), version(1, "bank..0"), gone, version(0, "banks..0")], "bank")
    assert [(each.at, each.partition) for each in found] == [(1, "0"), (2, "1")]


def document(id: str, lsn: int, epk: str = "10") -> dict[str, Any]:
    return {"id": id, "lsn": lsn, "epk": epk}


RANGES = [Range(id="4", min="", max="80", parents=[], lsn=9), Range(id="5", min="80", max="FF", parents=[], lsn=4)]


@pytest.mark.parametrize(
    ("continuation", "expected"), [(None, 9), ('"0"', 9), ('"1"', 7), ('"3"', 1), ('"8"', 1), ('"9"', 0)]
)
def test_lag_is_counted_from_the_first_unread_document_to_the_end_of_the_range(
    continuation: str | None, expected: int
) -> None:
    versions = [document("a", 1), document("b", 3), document("b", 9), document("c", 4, "90")]
    assert lag([*versions[:1], document("d", 3), *versions[1:]], RANGES, "", "80", continuation) == expected
