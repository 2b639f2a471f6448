"""A page of the change feed becomes event tables: documents byte for byte, cut between transactions alone."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.pipeline.connectors.cosmos.records import SEQUENCE_BITS, ChangeRecord, PageLimits, pages_of, records_of
from leasehold.pipeline.errors import FeedUnavailable, MalformedRecord
from leasehold.pipeline.event import EVENT_SCHEMA


def answer(*documents: str, **more: Any) -> bytes:
    head = "".join(f"{json.dumps(name)}:{json.dumps(value)}," for name, value in more.items())
    return f'{{{head}"_rid":"x","Documents":[{",".join(documents)}],"_count":{len(documents)}}}'.encode()


def document(lsn: int = 1, **fields: Any) -> str:
    return json.dumps({"id": "a", "account": "k", **fields, "_lsn": lsn, "_ts": 1_700_000_000}, ensure_ascii=False)


def latest(*documents: str, paths: tuple[str, ...] = ("/account",)) -> list[ChangeRecord]:
    return records_of(answer(*documents), paths, all_versions=False)


def versions(*documents: str) -> list[ChangeRecord]:
    return records_of(answer(*documents), ("/account",), all_versions=True)


@pytest.mark.parametrize(
    "written",
    [
        '{"id":"a", "n": 1.10, "big":123456789012345678901234567890,"_lsn":7 ,"_ts":1}',
        '{"id":"a","text":"\\u00e4 ä \\" ] } , [","_lsn":7,"_ts":1}',
        '\n{ "id" : "a", "deep": [[{"Documents":[1,2]}]], "_lsn":7,"_ts":1 }',
    ],
)
def test_a_document_stays_as_the_service_wrote_it(written: str) -> None:
    [record] = latest(written)
    assert record.body == written.strip().encode()
    assert (record.lsn, record.time_s) == (7, 1)


def test_documents_are_found_wherever_they_stand_in_the_answer() -> None:
    body = b' { "Other": {"Documents": [1]}, "Documents" : [ ' + document().encode() + b" ] } \n"
    assert len(records_of(body, (), all_versions=False)) == 1
    assert records_of(answer(), (), all_versions=False) == []


@pytest.mark.parametrize(
    ("fields", "paths", "key"),
    [
        ({"account": "k"}, ("/account",), "k"),
        ({"le/vel": {"x": "k"}}, ('/"le/vel"/x',), "k"),
        ({"account": 7}, ("/account",), "7"),
        ({"account": None}, ("/account",), None),
        ({}, ("/missing",), None),
        ({"a": {"b": "deep"}}, ("/a/b",), "deep"),
        ({"a": "x"}, ('/"a"',), "x"),
        ({"a": "text"}, ("/a/b",), None),
        ({"tenant": "t", "user": 1}, ("/tenant", "/user"), '["t", 1]'),
    ],
)
def test_the_key_is_the_partition_key(fields: dict[str, Any], paths: tuple[str, ...], key: str | None) -> None:
    [record] = latest(document(**fields), paths=paths)
    assert record.key == key


def test_a_version_has_its_document_and_what_it_was_before() -> None:
    item = (
        '{"current":{"id":"a","account":"k","n":2.0},"previous":{"id":"a","n":1.0},'
        '"metadata":{"operationType":"replace","lsn":5,"crts":9}}'
    )
    [record] = versions(item)
    assert record == ChangeRecord(
        5, 9, "k", b'{"id":"a","account":"k","n":2.0}', "replace", (("id", "a"), ("previous", '{"id":"a","n":1.0}'))
    )


@pytest.mark.parametrize("more", [{"current": {}}, {"current": None}, {}])
def test_a_delete_has_no_body_and_names_its_document(more: dict[str, Any]) -> None:
    metadata = {"operationType": "delete", "lsn": 5, "crts": 9, "id": "a", "timeToLiveExpired": True}
    [record] = versions(json.dumps({**more, "metadata": {**metadata, "partitionKey": {"account": "k"}}}))
    assert (record.body, record.key, record.operation) == (None, "k", "delete")
    assert record.properties == (("id", "a"), ("timeToLiveExpired", "true"))


def test_a_delete_has_the_key_of_a_quoted_path() -> None:
    item = {
        "metadata": {"operationType": "delete", "lsn": 1, "crts": 1, "id": "a", "partitionKey": {'"le/vel"/x': "k"}}
    }
    [record] = records_of(answer(json.dumps(item)), ('/"le/vel"/x',), all_versions=True)
    assert record.key == "k"


def test_a_delete_is_named_by_the_document_where_its_metadata_do_not_name_it() -> None:
    """The service's own tests read `current` of a delete; which accounts give what there is not documented."""
    metadata = {"operationType": "delete", "lsn": 5, "crts": 9}
    [record] = versions(json.dumps({"current": {"id": "a", "account": "k", "n": 1}, "metadata": metadata}))
    assert (record.body, record.key, record.operation) == (None, "k", "delete")
    assert record.properties == (("id", "a"),)


def test_an_answer_that_was_cut_off_anywhere_is_read_again() -> None:
    whole = answer(document(), document())
    for cut in range(1, len(whole)):
        with pytest.raises(FeedUnavailable, match="cut off"):
            records_of(whole[:cut], (), all_versions=False)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b"{}", b'{"Documents":{}}', b'{"Documents":[1 2]}', b"\xff", b"[" * 500, b"<html>"],
)
def test_an_answer_that_is_something_else_is_read_again(body: bytes) -> None:
    with pytest.raises(FeedUnavailable):
        records_of(body, (), all_versions=False)


@pytest.mark.parametrize("nested", ['{"a":' * 498 + "1" + "}" * 498, '{"a":' * 499 + "1" + "}" * 499, "[" * 100_000])
def test_an_answer_that_nests_deeper_than_any_document_is_malformed(nested: str) -> None:
    if nested.count("{") == 498:  # within the answer and its list
        with pytest.raises(MalformedRecord, match="`_lsn` and `_ts`"):
            latest(nested)
        return
    with pytest.raises(MalformedRecord, match="nested more than 500 levels deep"):
        latest(nested)


@pytest.mark.parametrize("item", ["1", "null", "{}", '{"_lsn":"7","_ts":1}', '{"_lsn":-1,"_ts":1}', '{"_lsn":7}'])
def test_a_change_without_its_place_is_malformed(item: str) -> None:
    with pytest.raises(MalformedRecord, match="`_lsn` and `_ts`"):
        latest(item)
    with pytest.raises(MalformedRecord, match="`lsn` and `crts`"):
        versions(item)


def test_events_of_one_transaction_share_its_lsn_and_have_sequences_of_their_own() -> None:
    [page] = pages_of(
        "0", latest(document(4), document(5), document(5)), '"5"', PageLimits(items_max=10, bytes_max=10_000)
    )
    table = page.events
    table.validate(full=True)
    assert table.schema.equals(EVENT_SCHEMA, check_metadata=True)
    assert table["offset"].to_pylist() == ["4", "5", "5"]
    assert table["sequence"].to_pylist() == [4 << SEQUENCE_BITS, 5 << SEQUENCE_BITS, (5 << SEQUENCE_BITS) + 1]
    assert table["enqueued_time"].to_pylist()[0].isoformat() == "2023-11-14T22:13:20+00:00"
    assert [page.position_after(1), page.position_after(2)] == ['"4"', None]


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 400)), max_size=30),
    st.integers(1, 9),
    st.integers(1, 900),
)
def test_pages_keep_order_limits_and_transactions(
    transactions: list[tuple[int, int]], events_max: int, bytes_max: int
) -> None:
    records = [
        ChangeRecord(lsn, 1, None, b"x" * size, "upsert", ())
        for lsn, (count, size) in enumerate(transactions, 1)
        for _ in range(count)
    ]
    pages = pages_of("0", records, '"99"', PageLimits(items_max=events_max, bytes_max=bytes_max))
    lsns = [[int(lsn) for lsn in page.events["offset"].to_pylist()] for page in pages]
    assert [lsn for page in lsns for lsn in page] == [record.lsn for record in records]
    for page, held in zip(pages, lsns, strict=True):
        size = sum(len(body) for body in page.events["body"].to_pylist())
        assert (len(held) <= events_max and size <= bytes_max) or len(set(held)) == 1
    assert all(a[-1] < b[0] for a, b in pairwise(lsns))
    assert [page.to for page in pages] == [*(f'"{held[-1]}"' for held in lsns[:-1]), *(['"99"'] if pages else [])]


HALF, WHOLE = '"a\\ud83d"', "a\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    "written", ['{"id":%s,"account":"k","_lsn":7,"_ts":1}', '{"id":"a","account":%s,"_lsn":7,"_ts":1}']
)
def test_half_a_character_is_replaced_in_id_and_key_and_stays_in_the_body(written: str) -> None:
    [record] = latest(written % HALF)
    assert record.body == (written % HALF).encode()
    assert WHOLE in (record.key, dict(record.properties)["id"])
    [page] = pages_of("0", [record], '"7"', PageLimits(items_max=10, bytes_max=1000))
    page.events.validate(full=True)


def test_half_a_character_in_a_deleted_document_or_a_key_of_several_parts_is_replaced() -> None:
    metadata = '{"lsn":7,"crts":1,"operationType":"delete","id":HALF,"partitionKey":{"/account":HALF}}'
    [record] = versions(f'{{"metadata":{metadata.replace("HALF", HALF)}}}')
    assert (record.key, record.properties) == (WHOLE, (("id", WHOLE),))
    [record] = latest(f'{{"id":"a","account":{HALF},"b":1,"_lsn":7,"_ts":1}}', paths=("/account", "/b"))
    assert record.key == f'["{WHOLE}", 1]'


@given(st.text(st.characters(max_codepoint=0xFFFF) | st.characters(categories=["Cs"])), st.text())
def test_any_text_of_json_becomes_a_page(half: str, rest: str) -> None:
    records = latest(json.dumps({"id": half + rest, "account": rest + half, "_lsn": 7, "_ts": 1}))
    [page] = pages_of("0", records, '"7"', PageLimits(items_max=10, bytes_max=10**6))
    page.events.validate(full=True)
    [event] = page.events.to_pylist()
    assert json.loads(event["body"])["id"] == half + rest
