"""Our codec of AMQP values, against itself and against the SDK's, both ways."""

from __future__ import annotations

from typing import Any

import pytest
from azure.eventhub._pyamqp._decode import _DECODE_BY_CONSTRUCTOR
from azure.eventhub._pyamqp._encode import encode_value
from hypothesis import given
from hypothesis import strategies as st
from unit.emulators.amqp import SHARED, SIMPLE, VALUES, as_decoded, as_theirs, same, within

from leasehold_emulators.eventhubs.codec import decode, encode, take
from leasehold_emulators.eventhubs.values import Array, Described, Int, Malformed, Short, Symbol, UByte, UInt, ULong

BOTH_KNOW = within(SIMPLE)


def their_encoding(value: Any) -> bytes:
    out = bytearray()
    encode_value(out, as_theirs(value))
    return bytes(out)


def their_decoding(data: bytes) -> Any:
    rest, value = _DECODE_BY_CONSTRUCTOR[data[0]](memoryview(data)[1:])
    assert not rest
    return value


@given(VALUES)
def test_what_was_encoded_decodes_to_the_same_value_of_the_same_type(value: Any) -> None:
    assert same(decode(encode(value)), value)


@given(BOTH_KNOW)
def test_what_the_sdk_encodes_we_decode(value: Any) -> None:
    assert same(decode(their_encoding(value)), value)


@given(BOTH_KNOW)
def test_what_we_encode_the_sdk_decodes(value: Any) -> None:
    assert their_decoding(encode(value)) == as_decoded(value)


@given(st.one_of(*(st.lists(kind, min_size=1, max_size=5) for kind in SHARED)))
def test_what_we_encode_as_an_array_the_sdk_decodes(values: list[Any]) -> None:
    assert their_decoding(encode(Array(values))) == as_decoded(values)


@given(st.binary(max_size=60))
def test_octets_at_random_are_a_value_or_malformed_and_nothing_else(data: bytes) -> None:
    try:
        value, end = take(data, 0)
    except Malformed:
        return
    assert 0 < end <= len(data)
    encode(value)


@given(VALUES, st.data())
def test_a_value_that_ends_early_is_malformed(value: Any, data: st.DataObject) -> None:
    whole = encode(value)
    with pytest.raises(Malformed):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


@pytest.mark.parametrize(
    ("value", "octets"),
    [
        (None, "40"),
        (True, "41"),
        (UInt(0), "43"),
        (ULong(0x14), "5314"),
        (Int(-1), "54ff"),
        (5, "5505"),
        (127, "557f"),
        (128, "810000000000000080"),
        (-128, "5580"),
        (-129, "81ffffffffffffff7f"),
        (UInt(255), "52ff"),
        (UInt(256), "7000000100"),
        (Short(7), "610007"),
        (Symbol("amqp:accepted:list"), "a312" + b"amqp:accepted:list".hex()),
        ([], "45"),
        ([UByte(1)], "c003015001"),
        ({"a": None}, "c10502a1016140"),
        (Array([Symbol("a"), Symbol("b")]), "e00c02b300000001610000000162"),
        (Described(ULong(0x24), []), "00532445"),
    ],
)
def test_the_encodings_of_the_standard(value: Any, octets: str) -> None:
    assert encode(value).hex() == octets


@pytest.mark.parametrize("code", [0xC0, 0x00, 0xE0], ids=["lists", "described values", "arrays"])
def test_values_that_nest_deeper_than_the_bound_are_malformed(code: int) -> None:
    octets = {0xC0: b"\xc0\xff\x01", 0x00: b"\x00", 0xE0: b"\xe0\xff\x01"}[code]
    with pytest.raises(Malformed, match="values nest more than 64 levels deep"):
        decode(octets * 100_000)


def test_a_number_out_of_range_and_a_type_that_amqp_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="out of the range of UInt"):
        encode(UInt(2**32))
    with pytest.raises(TypeError, match="no type for set"):
        encode({"a": {1, 2}})
