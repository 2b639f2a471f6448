"""Pages of the change feed: complete, in order, never cut within a transaction."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold_emulators.cosmos.container import Container, Partition
from leasehold_emulators.cosmos.feed import Ask, full_fidelity, latest_version, page, position_at
from leasehold_emulators.cosmos.ranges import Span
from leasehold_emulators.cosmos.writes import Draft, Write, apply

TRANSACTIONS = st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=4), max_size=15)


def container_with(transactions: list[list[str]]) -> Container:
    """One key, one range; every transaction a second after the one before, beginning at 1000."""
    container = Container(
        "WjwAAYAAAAE=", {"id": "tx", "partitionKey": {"paths": ["/k"], "kind": "Hash", "version": 2}}, 1
    )
    for number, ids in enumerate(transactions):
        draft = Draft(container, container.partition("0"), 1000.0 + number)
        for name in ids:
            apply(draft, Write(operation="Upsert", partition_key=["k"], body={"id": name, "k": "k", "n": number}))
        draft.commit()
    return container


def pages(partition: Partition, limit: int, *, is_full: bool) -> list[list[tuple[str, int]]]:
    found, after = [], 0
    while changes := (read := page(partition, Ask(after=after, span=Span(), limit=limit, is_full=is_full))).changes:
        found.append([(change.key.id, change.lsn) for change in changes])
        after = read.lsn
    return found


@given(TRANSACTIONS, st.integers(1, 5))
def test_all_versions_arrive_once_and_in_order_and_no_transaction_is_cut(
    transactions: list[list[str]], limit: int
) -> None:
    found = pages(container_with(transactions).partition("0"), limit, is_full=True)
    assert [name for page in found for name, _ in page] == [name for ids in transactions for name in ids]
    assert all(left[-1][1] < right[0][1] for left, right in itertools.pairwise(found))
    assert all(len({lsn for _, lsn in page[limit:]} - {page[limit - 1][1]}) == 0 for page in found if len(page) > limit)


@given(TRANSACTIONS, st.integers(1, 5))
def test_the_latest_version_of_each_document_arrives_once(transactions: list[list[str]], limit: int) -> None:
    found = [one for page in pages(container_with(transactions).partition("0"), limit, is_full=False) for one in page]
    assert dict(found) == {name: lsn for lsn, ids in enumerate(transactions, start=1) for name in ids}
    assert len(found) == len(dict(found))


def test_a_deleted_document_leaves_the_feed_of_latest_versions_and_ends_in_that_of_all() -> None:
    container = container_with([["a"], ["b"], ["a"]])
    draft = Draft(container, container.partition("0"), 1003.0)
    apply(draft, Write(operation="Delete", partition_key=["k"], id="a"))
    draft.commit()
    partition = container.partition("0")
    assert pages(partition, 9, is_full=False) == [[("b", 2)]]
    ended = full_fidelity(partition.log[-1], container)
    assert set(ended) == {"metadata"}
    assert ended["metadata"] == {
        "operationType": "delete",
        "lsn": 4,
        "crts": 1003,
        "previousImageLSN": 3,
        "timeToLiveExpired": False,
        "id": "a",
        "partitionKey": {"k": "k"},
    }
    assert latest_version(partition.log[1])["_lsn"] == 2


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        ("none", [(0, None), (1, None), (None, None)]),
        ("deletes", [(0, None), (1, None), ({}, 1)]),
        ("all", [(0, None), (1, 0), ({}, 1)]),
    ],
)
def test_previous_images_are_given_as_the_account_has_them(images: str, expected: list[tuple[object, object]]) -> None:
    container = container_with([["a"], ["a"]])
    container.images = images
    draft = Draft(container, container.partition("0"), 1003.0)
    apply(draft, Write(operation="Delete", partition_key=["k"], id="a"))
    draft.commit()
    items = [full_fidelity(change, container) for change in container.partition("0").log]
    found = [
        tuple((item.get(image) or {}).get("n", item.get(image)) for image in ("current", "previous")) for item in items
    ]
    assert found == expected


def test_a_time_is_exclusive_and_counts_whole_seconds() -> None:
    partition = container_with([["a"], ["b"], ["c"]]).partition("0")
    assert [position_at(partition, since) for since in (999, 1000, 1001, 1002, 5000)] == [0, 1, 2, 3, 3]


def test_a_span_of_a_range_has_its_own_documents_alone_and_goes_on_to_the_ranges_end() -> None:
    container = container_with([["a"], ["b"]])
    partition = container.partition("0")
    epk = partition.log[0].epk
    beside = page(partition, Ask(after=0, span=Span(min=epk + "FF"), limit=9))
    within = page(partition, Ask(after=0, span=Span(min=epk, max=epk + "FF"), limit=9))
    assert (beside.changes, beside.lsn) == ([], 2)
    assert len(within.changes) == 2


def test_a_replica_that_lags_shows_what_was_the_latest_then_and_its_own_lsn() -> None:
    container = container_with([["a"], ["b"], ["a"]])
    replica = container.partition("0").replica(1)
    read = page(replica, Ask(after=0, span=Span(), limit=10))
    assert ([(change.key.id, change.lsn) for change in read.changes], read.lsn) == ([("a", 1), ("b", 2)], 2)
    assert page(replica, Ask(after=3, span=Span(), limit=10)).lsn == 2
    assert container.partition("0").replica(9).lsn == 0
