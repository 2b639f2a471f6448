"""What a document is in a blob: header characters within Azure's bounds, and an equal object when it comes back."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.leases.document import BODY_BYTES_MAX, decode_lease
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.stores.blob.codec import METADATA_MAX, body_in, is_content, others_in, packed, too_large

TEXTS = st.text(st.characters(codec="utf-8"))
OBJECTS = st.dictionaries(
    TEXTS, st.recursive(st.none() | st.booleans() | st.integers() | TEXTS, lambda inner: st.lists(inner)), max_size=8
)
HEADER = re.compile(r"[!-~]*")
METADATA_BYTES_MAX = 8192


def unpacked(body: str) -> str:
    found = packed(body)
    return body_in("orders/7", found.metadata, found.content or b"")


@given(OBJECTS, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_a_body_comes_back_as_an_equal_object(
    value: dict[str, object], is_ascii: bool, indent: int | str | None
) -> None:
    body = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    assert json.loads(unpacked(body)) == value


@given(OBJECTS)
def test_metadata_is_what_headers_and_azure_take(value: dict[str, object]) -> None:
    metadata = packed(json.dumps({"text": "é  " * 2000, **value}, ensure_ascii=False)).metadata
    assert all(HEADER.fullmatch(text) and len(text) < 8000 for text in metadata.values())
    assert all(re.fullmatch(r"[a-z_][a-z0-9_]*", name) for name in metadata)
    assert sum(len("x-ms-meta-" + name) + len(text) for name, text in metadata.items()) < METADATA_BYTES_MAX


def noise(size: int) -> str:
    return "".join(f"{n * 7919 % 104729:x}" for n in range(size))[:size]


@pytest.mark.parametrize(
    ("body", "form"),
    [
        ("{}", "json"),
        (json.dumps({"t": "x" * (METADATA_MAX - 8)}, separators=(",", ":")), "json"),
        (json.dumps({"t": "x" * METADATA_MAX}), "zlib"),
        (json.dumps({"t": noise(BODY_BYTES_MAX - 10)}), "content"),
    ],
)
def test_a_body_is_readable_where_it_fits_and_compressed_or_content_where_not(body: str, form: str) -> None:
    found = packed(body)
    assert found.metadata["leasehold"] == form
    assert is_content(found.metadata) == (form == "content") == (found.content is not None)
    assert json.loads(unpacked(body)) == json.loads(body)


def test_numbers_are_left_as_they_are_written() -> None:
    body = '{"tick":9223372036854775807,"share":0.1,"long":1.00000000000000000001,"exp":1E5}'
    assert unpacked(body) == body


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({}, "is not a document of Leasehold"),
        ({"offset": "7"}, "is not a document of Leasehold"),
        ({"leasehold": "brotli", "leasehold_0": "x"}, "later version"),
        ({"leasehold": "json"}, "not JSON"),
        ({"leasehold": "json", "leasehold_1": '"tick":1}'}, "not JSON"),
        ({"leasehold": "zlib", "leasehold_0": "not base64"}, "cannot be unpacked"),
        ({"leasehold": "zlib", "leasehold_0": b64encode(b"not zlib").decode()}, "cannot be unpacked"),
        ({"leasehold": "zlib", "leasehold_0": b64encode(zlib.compress(b"{}" * 99)[:9]).decode()}, "cut off"),
        ({"leasehold": "zlib", "leasehold_0": b64encode(zlib.compress(b" " * 10**6)).decode()}, "larger than"),
    ],
)
def test_what_is_no_document_of_ours_says_why_when_it_is_read(metadata: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidDocument, match=why):
        decode_lease("orders/leases/7", body_in("orders/7", metadata))


def test_one_that_is_too_large_says_so() -> None:
    with pytest.raises(InvalidDocument, match="larger than"):
        decode_lease("orders/leases/7", too_large("orders/7"))


def test_what_others_put_there_is_told_from_ours() -> None:
    assert others_in(
        {"leasehold": "json", "leasehold_0": "{}", "leasehold_10": "", "leaseholder": "a", "team": "b"}
    ) == {
        "leaseholder": "a",
        "team": "b",
    }
