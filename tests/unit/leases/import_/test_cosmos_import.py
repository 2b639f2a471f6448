"""Documents of .NET, Java and V2 -> what they would be here: positions kept, owners dropped, everything else refused by name."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.leases.lease_documents import INFO, LOCK, PREFIX, dotnet, java, packed, v2

from leasehold.leases import dotnet as document_form
from leasehold.leases.document import decode_lease, encode_lease
from leasehold.leases.dotnet import INCREMENTAL
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.import_.cosmos_import import DOCUMENTS_MAX, candidates, documents_in, leases_among
from leasehold.leases.import_.plan import Candidate
from leasehold.leases.lease import Child


def brought(*documents: Any, is_java: bool = False, **options: Any) -> list[Candidate]:
    """By way of the text, as they come."""
    found = documents_in("\n".join(map(json.dumps, documents)))
    prefix, leases = leases_among(found, options.pop("prefix", None))
    return candidates(leases, pipeline="orders", is_java=is_java, prefix=prefix, **options)


def positions(found: list[Candidate]) -> dict[str, str | None]:
    return {each.partition: each.lease.continuation for each in found if each.lease}


def refusal(document: Any, **options: Any) -> str:
    [found] = brought(document, **options)
    assert found.lease is None
    return found.refused


def test_of_dotnets_documents_the_position_stays_and_the_owner_goes() -> None:
    [zero, span] = brought(dotnet(Owner="dotnet-1"), dotnet("3F-7F", '"77"'))
    assert zero.lease is not None
    assert (zero.partition, zero.lease.continuation, zero.lease.scope) == ("0", '"1234"', "-FF")
    assert (zero.lease.owner, zero.lease.incarnation, zero.owner) == (None, None, "dotnet-1")
    assert zero.written_us == 1772668516523351
    assert span.lease is not None
    assert (span.partition, span.lease.continuation, span.lease.scope) == ("3F-7F", '"77"', "3F-7F")


def test_the_old_librarys_partition_id_is_taken_for_the_token() -> None:
    [found] = brought(v2())
    assert positions([found]) == {"7": '"9"'}
    assert found.owner == "old-host"
    assert found.lease is not None
    assert found.lease.scope is None


def test_javas_continuation_is_unpacked() -> None:
    [found] = brought(java("-FF", [("", "FF", '"500"')]), is_java=True)
    assert positions([found]) == {"-FF": '"500"'}
    assert found.packed == packed([("", "FF", '"500"')])
    assert found.lease is not None
    assert found.lease.scope == "-FF"


def test_javas_older_leases_have_the_etag_as_it_is() -> None:
    old = {
        "id": "ordersacct.documents.azure.com_bank_orders..3",
        "LeaseToken": "3",
        "ContinuationToken": '"41"',
        "Owner": "",
    }
    assert positions(brought(old, is_java=True)) == {"3": '"41"'}


def test_several_positions_in_one_java_lease_are_kept_apart() -> None:
    [found] = brought(java("-FF", [("7F", "FF", '"9"'), ("", "7F", '"5"')]), is_java=True)
    assert found.parts == (Child("-7F", '"5"', "-7F"), Child("7F-FF", '"9"', "7F-FF"))
    [same] = brought(java("-FF", [("7F", "FF", '"5"'), ("", "7F", '"5"')]), is_java=True)
    assert (same.parts, positions([same])) == ((), {"-FF": '"5"'})


def test_unknown_fields_come_back_in_a_document_that_dotnet_reads() -> None:
    [found] = brought(dotnet(theirs={"deep": [1, None]}, properties={"custom": "kept"}))
    assert found.lease is not None
    kept = decode_lease("orders/leases/0", encode_lease(found.lease))
    document = document_form.encode(kept, prefix=PREFIX, now=datetime(2026, 11, 22, tzinfo=UTC))
    assert document["theirs"] == {"deep": [1, None]}
    assert document["properties"] == {"custom": "kept"}
    assert document["ContinuationToken"] == '"1234"'
    assert not document.keys() & {"_rid", "_etag", "_ts", "_self"}


def test_markers_locks_and_our_own_documents_are_passed_over() -> None:
    ours = {"id": "leasehold:orders:info", "body": "{}"}
    [found] = brought(INFO, LOCK, ours, dotnet())
    assert positions([found]) == {"0": '"1234"'}


def test_a_json_array_is_read_as_lines_are() -> None:
    documents = [INFO, dotnet(), dotnet("1")]
    for indent in (None, 2):
        assert documents_in(json.dumps(documents, indent=indent)) == documents
    lines = "\ufeff" + "\r\n".join(map(json.dumps, documents)) + "\n\n"
    assert documents_in(lines) == documents


def test_several_processors_in_one_container_are_told_apart_by_their_prefix() -> None:
    other = {**dotnet("5"), "id": "billing_x_y..5"}
    with pytest.raises(
        InvalidDocument, match=r"leases of 2 processors \('billing_x_y', 'ordersappacct.*choose one by --prefix"
    ):
        brought(dotnet(), other)
    assert positions(brought(dotnet(), other, prefix="billing_x_y")) == {"5": '"1234"'}
    assert positions(brought(dotnet(), other, prefix=PREFIX)) == {"0": '"1234"'}


def test_another_prefix_that_begins_alike_is_another_processor() -> None:
    longer = {**dotnet("5"), "id": f"{PREFIX}2..5"}
    assert positions(brought(dotnet(), longer, prefix=PREFIX)) == {"0": '"1234"'}


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"id": "something"}, "document 'something' is not a lease, because it has no 'LeaseToken': leave it out"),
        ({"LeaseToken": "0"}, "field 'id' must be a text"),
        (dotnet(id=7), "document 'without id': field 'id' must be a text"),
        (dotnet(LeaseToken=""), "field 'LeaseToken'"),
        (dotnet(LeaseToken=["0"]), "field 'LeaseToken' must be a text"),
        (dotnet(version=2), "field 'version' must lie between 0 and 1"),
        (dotnet(version="0"), "field 'version' must be an integer"),
        (dotnet(ContinuationToken=1234), "field 'ContinuationToken' must be a text"),
        (dotnet(ContinuationToken='"' + "1" * 40_000), "field 'ContinuationToken' is longer than"),
        (dotnet(Owner={}), "field 'Owner' must be a text"),
        (dotnet(leasehold=[]), "field 'leasehold' must be an object"),
        (dotnet(leasehold={"version": 9, "epoch": 1, "tick": 1}), "field 'version' is 9"),
        (dotnet(Mode="Full-Fidelity Feed"), "field 'Mode' is 'Full-Fidelity Feed'"),
        (
            dotnet(continuation=packed([("", "FF", '"5"')])),
            "field 'ContinuationToken' is one of Java's: import it with --from java",
        ),
    ],
)
def test_what_is_no_lease_is_refused_by_document_and_field(document: Any, told: str) -> None:
    said = refusal(document, mode=INCREMENTAL)
    assert told in said
    assert "delete" not in said
    assert "\n" not in said


def test_bounds_of_other_lengths_are_the_same_bounds() -> None:
    parts = [("", "1F", '"5"'), ("1F00", "7F0", '"6"')]
    [found] = brought(java("-7F", parts), is_java=True)
    assert found.parts == (Child("-1F", '"5"', "-1F"), Child("1F00-7F0", '"6"', "1F00-7F0"))


def test_javas_mode_and_bounds_have_to_be_the_leases() -> None:
    other = java("-FF", None, ContinuationToken=packed([("", "FF", '"5"')], Mode="FULL_FIDELITY"))
    assert "is of mode 'Full-Fidelity Feed'" in refusal(other, is_java=True, mode=INCREMENTAL)
    assert "covers -7F, and the lease -FF" in refusal(java("-FF", [("", "7F", '"5"')]), is_java=True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "line 1 of the input is not JSON"),
        ('{"id": "a"}\nnonsense', "line 2 of the input is not JSON"),
        ("[1, 2]", "number 1 of the input is not a JSON object"),
        ('[{"id": "a"}', "the input is not JSON"),
        ('{"a": 1, "a": 2}', "a key appears twice"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": 1e999}', "a number is too large"),
        ("[" * 100_000, "the input is nested more than 100 levels deep"),
        (
            '{"id": "x", "deep": ' + "[" * 40 + "]" * 40 + "}",
            "document 'x': field 'document' is nested more than 32 deep",
        ),
        ('{"id": "x", "text": "\\ud800"}', "document 'x': field 'document' holds a lone surrogate"),
        ("[" + ",".join(["{}"] * (DOCUMENTS_MAX + 1)) + "]", "holds more than 10000 documents"),
        (json.dumps({"id": "x", "text": "x" * 300_000}), "document 'x' is larger than a lease can be"),
    ],
)
def test_an_input_that_is_no_documents_is_refused_as_a_whole(text: str, told: str) -> None:
    with pytest.raises(InvalidDocument, match=told):
        documents_in(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


FIELDS = (
    *("id", "version", "LeaseToken", "PartitionId", "Owner", "ContinuationToken", "timestamp", "_ts"),
    *("FeedRange", "feedRange", "Mode", "properties", "leasehold", "x"),
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, json_values)), st.booleans())
def test_whatever_a_document_holds_it_becomes_a_lease_or_is_refused(document: dict[str, Any], is_java: bool) -> None:
    try:
        documents_in(json.dumps([document]))
    except InvalidDocument:
        return
    [found] = candidates([document], pipeline="orders", is_java=is_java)
    assert (found.lease is None) == bool(found.refused)
