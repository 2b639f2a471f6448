"""Rows as writes to Cosmos DB, and what answers to them mean."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from leasehold.pipeline.connectors.cosmos.change_feed_request import FeedAnswer
from leasehold.pipeline.connectors.cosmos.point_operations import Kind, Write, Writing, verdict
from leasehold.pipeline.errors import SinkRejected

KEY = "bank/7/12/0"


def writing(**given: Any) -> Writing:
    return Writing(**{"content": "row", "operation": "operation", "key_paths": ("/account",), **given})


def write_of(row: dict[str, Any], **given: Any) -> Write:
    converted = writing(**given)(row, KEY)
    assert converted is not None
    assert isinstance(converted.value, Write)
    return converted.value


@pytest.mark.parametrize(
    ("word", "kind"),
    [(None, "upsert"), ("create", "upsert"), ("replace", "upsert"), ("upsert", "upsert"), ("delete", "delete")],
)
def test_the_operation_of_a_row_says_what_becomes_of_its_document(word: str | None, kind: Kind) -> None:
    write = write_of({"id": "a", "account": "x", "operation": word})
    assert (write.kind, write.id, write.key) == (kind, "a", ("x",))
    assert write.document == ({"id": "a", "account": "x"} if kind == "upsert" else {})


def test_a_row_without_an_id_has_its_key_as_one_so_that_it_replaces_itself() -> None:
    assert write_of({"account": "x"}).id == "bank:7:12:0"
    with pytest.raises(ValueError, match="has no `id`"):
        write_of({"account": "x", "operation": "delete"})


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"id": pa.int64()}, "its column 'id' is int64, and an `id` of Cosmos DB is a text: cast it to STRING"),
        ({"id": pa.null()}, "its column 'id' is null"),
        (
            {"id": pa.string(), "n": pa.duration("s")},
            r"cannot take column 'n', which has duration\[s\]: cast it to STRING",
        ),
        ({"id": pa.string(), "n": pa.list_(pa.duration("s"))}, "cannot take column 'n', which has"),
        (
            {"id": pa.string(), "account": pa.list_(pa.string())},
            "its column 'account' is list<.*>, and /account, the container's",
        ),
    ],
)
def test_a_column_of_which_no_row_could_become_a_document_is_refused_by_its_name(
    columns: dict[str, pa.DataType], why: str
) -> None:
    schema = pa.schema({"account": pa.string(), "operation": pa.string()} | columns)
    with pytest.raises(SinkRejected, match=f"^the container .*{why}"):
        writing().check_columns(schema, "the container")


def test_an_output_without_the_column_of_the_partition_key_is_refused() -> None:
    with pytest.raises(SinkRejected, match="it has no column 'account', and /account is the container's partition key"):
        writing().check_columns(pa.schema({"id": pa.string()}), "the container")


@pytest.mark.parametrize(
    ("columns", "more"),
    [
        ({"account": pa.string()}, {}),
        ({"account": pa.float64(), "id": pa.dictionary(pa.int32(), pa.string())}, {}),
        ({"account": pa.string(), "operation": pa.duration("s")}, {}),
        ({"account": pa.struct({"city": pa.string()})}, {"key_paths": ("/account/city",)}),
        ({"n": pa.string()}, {"key_paths": ("/id",)}),
        ({"body": pa.binary()}, {"content": "body"}),
    ],
)
def test_columns_that_may_become_documents_are_taken(columns: dict[str, pa.DataType], more: dict[str, Any]) -> None:
    writing(**more).check_columns(pa.schema(columns), "the container")


def test_a_value_that_json_does_not_hold_is_refused_by_its_column() -> None:
    with pytest.raises(ValueError, match=r"^JSON does not hold: .*\(column 'n'\)$"):
        writing()({"id": "a", "account": "x", "m": 1.0, "n": [float("nan")]}, KEY)


def test_a_patch_sets_the_columns_that_are_not_null() -> None:
    row = {"id": "a", "account": "x", "n/m~": 1, "left": None, "operation": "patch"}
    assert write_of(row).patches == [{"op": "set", "path": "/n~1m~0", "value": 1}]
    body = json.dumps({"id": "a", "account": "x", "gone": None}).encode()
    patches = write_of({"body": body, "operation": "patch"}, content="body").patches
    assert patches == [{"op": "set", "path": "/gone", "value": None}]


def test_a_patch_of_nothing_is_no_write_and_one_of_too_much_is_refused() -> None:
    row: dict[str, Any] = {"id": "a", "account": "x", "operation": "patch"}
    assert writing()(row, KEY) is None
    with pytest.raises(ValueError, match="would patch 11 fields"):
        writing()(row | {f"f{n}": n for n in range(11)}, KEY)


def test_the_partition_key_may_lie_deep_and_have_several_parts() -> None:
    body = json.dumps({"id": "a", "tenant": "t", "account": {"number": 7}}).encode()
    write = write_of({"body": body}, content="body", key_paths=("/tenant", "/account/number"))
    assert write.key == ("t", 7)


def test_a_quoted_path_of_the_partition_key_may_contain_slashes() -> None:
    row = {"id": "a", "le/vel": {"x": "k"}, "n": 1, "operation": "patch"}
    write = write_of(row, key_paths=('/"le/vel"/x',))
    assert write.key == ("k",)
    assert [patch["path"] for patch in write.patches] == ["/n"]


def test_writes_of_one_document_have_one_order() -> None:
    orders = [
        writing()(row, KEY).order  # type: ignore[union-attr]  # rows that become writes
        for row in (
            {"id": "a", "account": "x"},
            {"id": "a", "account": "x", "operation": "delete"},
            {"id": "a", "account": "y"},
        )
    ]
    assert orders[0] == orders[1] != orders[2]


def test_values_become_json_without_losing_digits() -> None:
    row = {"account": "x", "amount": Decimal("0.10"), "at": datetime(2026, 1, 1, tzinfo=UTC)}
    document = write_of(row).document
    assert (document["amount"], document["at"]) == ("0.10", "2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"account": "x", "operation": "merge"}, "has 'merge' as `operation`"),
        ({"account": None}, "as /account, the container's partition key"),
        ({}, "as /account, the container's partition key"),
        ({"account": "x", "id": "a/b"}, "has no `id`"),
        ({"account": "x", "id": ""}, "has no `id`"),
    ],
)
def test_a_row_that_cannot_become_a_document_is_refused(row: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        writing()(row, KEY)


def test_a_body_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ValueError, match="a `body` that is nested more than 500 levels deep"):
        writing(content="body")({"body": b"[" * 501}, KEY)


@pytest.mark.parametrize("body", [b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each says something else
        writing(content="body")({"body": body}, KEY)


@pytest.mark.parametrize(
    ("kind", "status", "substatus", "expected"),
    [
        ("upsert", 201, "", "taken"),
        ("upsert", 429, "3200", "retry"),
        ("upsert", 449, "", "retry"),
        ("upsert", 408, "", "retry"),
        ("upsert", 410, "1002", "retry"),
        ("upsert", 503, "", "retry"),
        ("upsert", 400, "", "refused"),
        ("upsert", 403, "", "refused"),
        ("upsert", 404, "1003", "refused"),
        ("upsert", 409, "", "refused"),
        ("upsert", 413, "", "refused"),
        ("delete", 404, "", "taken"),
        ("delete", 404, "1003", "refused"),
        ("patch", 404, "", "refused"),
    ],
)
def test_what_an_answer_means(kind: Kind, status: int, substatus: str, expected: str) -> None:
    headers = {"x-ms-substatus": substatus} if substatus else {}
    write = Write(kind=kind, id="a", key=("x",))
    assert verdict(write, FeedAnswer(status, headers), "stop") == expected


def test_a_patch_of_a_document_that_is_not_there_may_be_skipped() -> None:
    assert verdict(Write(kind="patch", id="a", key=("x",)), FeedAnswer(404, {}), "skip") == "taken"


@pytest.mark.parametrize(
    "id", ["", ".", "..", "a ", " ", "a\n", "a\tb", "a\rb", "a\0b", "a/b", "a\\b", "a?", "a#", "x" * 1024]
)
@pytest.mark.parametrize("operation", ["upsert", "patch", "delete"])
def test_an_id_that_the_sdk_or_an_address_does_not_take_is_refused_whatever_the_operation(
    id: str, operation: str
) -> None:
    with pytest.raises(ValueError, match="has no `id` that Cosmos DB takes"):
        write_of({"id": id, "account": "x", "n": 1, "operation": operation})


@pytest.mark.parametrize("id", [" a", "...", ".a", "a.", "\u00a0", "ä", "a b", "x" * 1023, "%2e", "+"])
def test_other_ids_are_taken(id: str) -> None:
    assert write_of({"id": id, "account": "x"}).id == id


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"id":"a","account":"x","n":1,"n":2}', "a key twice"),
        (b'{"id":"a","account":"x","n":[{"m":1,"m":1}]}', "a key twice"),
        (b'{"id":"a","account":"x","n":"caf\xe9"}', "not UTF-8"),
        ('{"id":"a","account":"x"}'.encode("utf-16"), "not UTF-8"),
        (b'{"id":"a","account":"x","n":NaN}', "JSON does not hold"),
        (b'{"id":"a","account":"x","n":1e400}', "JSON does not hold"),
        (b'{"id":"a","account":"x","n":"\\ud800"}', "half a character"),
        (b'{"id":"a","account":"\\ud800"}', "half a character"),
        (b'{"id":"a"', "not JSON"),
    ],
)
def test_a_body_that_no_document_holds_exactly_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        write_of({"body": body}, content="body")
