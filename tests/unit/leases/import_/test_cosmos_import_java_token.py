"""Java's continuation: ETags, packed into base64 of JSON, and read strictly."""

import base64
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.leases.lease_documents import packed

from leasehold.leases.dotnet import FULL_FIDELITY, INCREMENTAL
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.import_.cosmos_import import Part, Token, is_packed, unpacked

WHOLE = [("", "FF", '"500"')]


def edited(**changes: Any) -> str:
    """A continuation whose inner part is changed; None takes a field out."""
    state = json.loads(base64.b64decode(packed(WHOLE)))
    inner = {**state["Continuation"], **changes}
    state["Continuation"] = {key: value for key, value in inner.items() if value is not None}
    return base64.b64encode(json.dumps(state).encode()).decode()


def test_the_etag_keeps_its_inner_quotes() -> None:
    assert unpacked("x", packed(WHOLE)) == Token(INCREMENTAL, (Part("", "FF", '"500"'),))


def test_several_parts_come_in_the_order_of_their_bounds() -> None:
    """Java turns them round with every read."""
    token = unpacked("x", packed([("7f", "FF", '"9"'), ("", "3F", '"5"'), ("3F", "7F", '"7"')]))
    assert [(part.name, part.continuation) for part in token.parts] == [
        ("-3F", '"5"'),
        ("3F-7F", '"7"'),
        ("7F-FF", '"9"'),
    ]


def test_a_lease_that_was_never_read_is_at_the_beginning_where_java_was_to_begin_there() -> None:
    assert unpacked("x", packed([])).parts == ()
    assert unpacked("x", packed([("", "FF", None)])).parts == (Part("", "FF", None),)
    assert unpacked("x", packed(WHOLE, Mode="FULL_FIDELITY", StartFrom={"Type": "NOW"})).mode == FULL_FIDELITY


@pytest.mark.parametrize("start", ["NOW", "POINT_IN_TIME", "LEGACY_CHECKPOINT"])
@pytest.mark.parametrize("parts", [[], [("", "FF", None)], [("", "7F", '"5"'), ("7F", "FF", None)]])
def test_what_was_never_read_and_was_to_begin_elsewhere_is_refused(start: str, parts: list[Any]) -> None:
    with pytest.raises(InvalidDocument, match=f"'Type' is '{start}' and nothing was read yet"):
        unpacked("x", packed(parts, StartFrom={"Type": start}))


@pytest.mark.parametrize(
    ("continuation", "told"),
    [
        ("eyJ", "is not base64 of a text"),
        ("eyJ!" * 8, "is not base64 of a text"),
        (base64.b64encode(b'{"V":1}\xff').decode(), "is not base64 of a text"),
        (base64.b64encode(b"{").decode(), "is not JSON"),
        (base64.b64encode(b"[1]").decode(), "is not a JSON object"),
        (base64.b64encode(b'{"a":' * 5000 + b"1" + b"}" * 2000).decode(), "nested more than 100 levels deep"),
        (base64.b64encode(b'{"a":"' + b"x" * 40_000 + b'"}').decode(), "is larger than"),
        (base64.b64encode(b"[" * 9000).decode(), "nested more than 100 levels deep"),
        (base64.b64encode(b'{"V":1,"V":1}').decode(), "a key appears twice"),
        (packed(WHOLE, V=2), "'V' is 2"),
        (packed(WHOLE, V=True), "'V' must be an integer"),
        (packed(WHOLE, Mode="SIDEWAYS"), "'Mode' is 'SIDEWAYS'"),
        (packed(WHOLE, Continuation=7), "'Continuation' must be an object"),
        (packed([], StartFrom=None), "'StartFrom' must be an object"),
        (edited(V=3), "'V' is 3"),
        (edited(Continuation=[]), "ranges with gaps, or none"),
        (edited(Continuation=[7]), "'Continuation' must hold objects"),
        (edited(Continuation=[{"token": '"5"'}]), "'range' must be an object"),
        (edited(Continuation=[{"range": {"min": "", "max": "FF"}}]), "'token' must be a text, not missing"),
        (packed([("FF", "", '"5"')]), "'min' and max are not bounds"),
        (packed([("", "zz", '"5"')]), "'min' and max are not bounds"),
        (packed([("", "7F", '"5"'), ("80", "FF", '"6"')]), "ranges with gaps"),
        (packed([("", "7F", '"5"'), ("70", "FF", '"6"')]), "ranges with gaps"),
        (packed([("", "FF", '[{"token":"5","range":{}}]')]), "'token' holds a continuation of an SDK before 4"),
    ],
)
def test_whatever_is_not_as_java_writes_it_is_refused_by_document_and_field(continuation: str, told: str) -> None:
    with pytest.raises(InvalidDocument, match=told) as refused:
        unpacked("the-document", continuation)
    assert "'the-document, ContinuationToken'" in str(refused.value)
    assert "\n" not in str(refused.value)


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: base64.b64encode(raw).decode()))
def test_nothing_else_is_ever_raised(text: str) -> None:
    with suppress(InvalidDocument):
        unpacked("x", text)


def test_an_etag_is_not_taken_for_a_packed_one() -> None:
    assert is_packed(packed(WHOLE))
    assert is_packed(base64.b64encode(b'{ "V": 1 }').decode())
    assert not any(is_packed(text) for text in (None, "", '"1234"', "1234"))
