"""AMQP values: our reader against the SDK's, the wire server's own codec, and nonsense; and what becomes of them as text."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from azure.eventhub._pyamqp._decode import _DECODE_BY_CONSTRUCTOR
from azure.eventhub._pyamqp._encode import encode_value
from hypothesis import example, given
from hypothesis import strategies as st
from unit.emulators.amqp import SIMPLE, VALUES, as_theirs, within

from leasehold.pipeline.connectors.eventhubs.amqp.decode import KEYS_WITHIN_KEYS_MAX, text_of
from leasehold.pipeline.connectors.eventhubs.amqp.values import (
    LEVELS_MAX,
    AmqpMap,
    Described,
    Malformed,
    Symbol,
    Timestamp,
    value_at,
)
from leasehold_emulators.eventhubs import values as theirs
from leasehold_emulators.eventhubs.codec import encode

BOTH_KNOW = within(SIMPLE)


def sdk_encoding(value: Any) -> bytes:
    out = bytearray()
    encode_value(out, as_theirs(value))
    return bytes(out)


def as_the_sdk_has_it(value: Any) -> Any:
    match value:
        case Described():
            return as_the_sdk_has_it(value.value)
        case AmqpMap():
            return {as_the_sdk_has_it(key): as_the_sdk_has_it(each) for key, each in value}
        case list():
            return [as_the_sdk_has_it(each) for each in value]
        case str():
            return value.encode()
        case float():
            return pytest.approx(value, rel=1e-6, abs=1e-44)  # 32 bits, written shortly
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Same:
    """Equal to a decimal of the same digits, also if that is not a number, which does not equal itself."""

    decimal: Decimal

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decimal) and str(other) == str(self.decimal)


def as_ours(value: Any) -> Any:
    """A value of the wire server's, as it should be read."""
    match value:
        case theirs.Described():
            return Described(as_ours(value.descriptor), as_ours(value.value))
        case dict():
            return AmqpMap((as_ours(key), as_ours(each)) for key, each in value.items())
        case list():
            return [as_ours(each) for each in value]
        case theirs.Symbol():
            return Symbol(value)
        case theirs.Timestamp():
            return Timestamp(value)
        case theirs.Float():
            return pytest.approx(float(value), rel=1e-6, abs=1e-44)
        case bytes() if type(value) is not bytes:
            return Same(value_at(encode(value))[0])  # octets over there
    return value


@given(BOTH_KNOW)
def test_what_the_sdk_encodes_is_read_as_the_sdk_reads_it(value: Any) -> None:
    data = sdk_encoding(value)
    _, expected = _DECODE_BY_CONSTRUCTOR[data[0]](memoryview(data)[1:])
    found, end = value_at(data)
    assert end == len(data)
    assert expected == as_the_sdk_has_it(found)


@given(VALUES)
def test_every_type_is_read_as_it_was_written(value: Any) -> None:
    data = encode(value)
    found, end = value_at(b"\x40" + data + b"\x41", 1)
    assert end == len(data) + 1
    assert as_ours(value) == found or str(as_ours(value)) == str(found)  # a decimal that is no number equals nothing
    assert isinstance(text_of(found), str) or found is None or isinstance(found, Described)


@given(VALUES.map(encode), st.data())
def test_octets_that_end_early_are_malformed(data: bytes, draw: st.DataObject) -> None:
    cut = draw.draw(st.integers(0, len(data) - 1))
    with pytest.raises(Malformed):
        value_at(data[:cut])


@given(st.binary(max_size=60))
def test_octets_at_random_are_a_value_or_malformed_and_nothing_else(data: bytes) -> None:
    try:
        value, end = value_at(data)
        (text_of(value) or "").encode()
    except Malformed:
        return
    assert 0 < end <= len(data)


def array_of(item: bytes) -> bytes:
    return b"\xf0" + struct.pack(">II", 4 + len(item), 1) + item


def list_of(item: bytes) -> bytes:
    return b"\xd0" + struct.pack(">II", 4 + len(item), 1) + item


def map_with(key: bytes) -> bytes:
    return b"\xd1" + struct.pack(">II", 5 + len(key), 2) + key + b"\x40"


def described(value: bytes) -> bytes:
    return b"\x00\x53\x01" + value


def nested(within: Callable[[bytes], bytes], levels: int) -> bytes:
    value = b"\x50\x07"
    for _ in range(levels):
        value = within(value)
    return value


@pytest.mark.parametrize("octets", [b"\x00", b"\xe0\x00\x00\x00", b"\x00\x53\x01"])
def test_a_value_that_is_nested_without_end_is_malformed(octets: bytes) -> None:
    with pytest.raises(Malformed):
        value_at(octets * 100_000)


@pytest.mark.parametrize("within", [array_of, list_of, map_with, described])
def test_a_value_has_at_most_so_many_levels(within: Callable[[bytes], bytes]) -> None:
    value, _ = value_at(nested(within, LEVELS_MAX))
    if within is not map_with:
        assert (text_of(value) or "").strip("[]") == "7"
    for levels in (LEVELS_MAX + 1, 700, 10_000):
        with pytest.raises(Malformed, match=f"nested more than {LEVELS_MAX} levels deep"):
            value_at(nested(within, levels))


def test_maps_as_keys_of_maps_do_not_fill_the_memory_with_backslashes() -> None:
    value, _ = value_at(nested(map_with, KEYS_WITHIN_KEYS_MAX))
    assert "7" in (text_of(value) or "")
    for levels in (KEYS_WITHIN_KEYS_MAX + 1, LEVELS_MAX):
        value, _ = value_at(nested(map_with, levels))
        with pytest.raises(Malformed, match="keys within keys"):
            text_of(value)


def test_an_array_does_not_have_more_items_than_it_has_room_for() -> None:
    """Else a small message would fill the memory."""
    for count in (64, 65, 2**32 - 1):
        array = b"\xf0" + struct.pack(">II", 5, count) + b"\x40"
        if count == 64:
            assert value_at(array) == ([None] * 64, len(array))
            continue
        with pytest.raises(Malformed):
            value_at(array)


@pytest.mark.parametrize(
    ("code", "text"),
    [(0x41, "A"), (0x1F600, "\U0001f600"), (0xD83D, "\ufffd"), (0xDFFF, "\ufffd"), (2**32 - 1, "\ufffd")],
)
def test_a_character_is_a_text_also_where_it_is_half_of_one(code: int, text: str) -> None:
    """.NET's char is one of the two that an emoji takes."""
    found, _ = value_at(b"\x73" + struct.pack(">I", code))
    assert text_of(found) == text
    assert text_of([found]) == f'["{text}"]'


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        ("32000001", "0.1"),  # 1 * 10^-1
        ("b2800001", "-1"),
        ("3200007b", "12.3"),
        ("78000000", "Infinity"),
        ("f8000000", "-Infinity"),
        ("7c000000", "NaN"),
    ],
)
def test_decimals_are_read_as_numbers(octets: str, text: str) -> None:
    found, _ = value_at(b"\x74" + bytes.fromhex(octets))
    assert Decimal(text_of(found) or "") == Decimal(text) or text == "NaN" == text_of(found)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**30), max_value=10**30))
def test_a_decimal_of_128_bits_is_what_it_was(number: Decimal) -> None:
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    raw = (sign << 127) | ((exponent + 6176) << 113) | int("".join(map(str, digits)))
    assert value_at(b"\x94" + raw.to_bytes(16))[0] == number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (True, "true"),
        (-7, "-7"),
        (1.5, "1.5"),
        (float("nan"), "nan"),
        ("text", "text"),
        (Symbol("symbol"), "symbol"),
        (b"\x00\xff", "AP8="),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Timestamp(1_700_000_000_123), "2023-11-14T22:13:20.123000Z"),
        (Timestamp(-1), "1969-12-31T23:59:59.999000Z"),
        (Timestamp(2**62), str(2**62)),
        ([1, None, "x", b"\x00", [True]], '[1, null, "x", "AA==", [true]]'),
        (AmqpMap((("a", 1), (Symbol("b"), AmqpMap()))), '{"a": 1, "b": {}}'),
        ([float("inf")], '["inf"]'),
        (Described(Symbol("com.microsoft:uri"), "https://a/b"), "https://a/b"),
        (Described(Symbol("com.microsoft:timespan"), 905_000_000), "90.5"),
        (Described(Symbol("com.microsoft:datetime-offset"), 638_355_968_001_230_000), "2023-11-14T22:13:20.123000Z"),
        (Described(300, [1]), "[1]"),
        (Described(300, None), None),
    ],
)
def test_a_value_is_a_text_in_the_event_table(value: Any, text: str | None) -> None:
    assert text_of(value) == text
    if isinstance(value, list | AmqpMap) and text is not None:
        json.loads(text)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
@example(999999986991104.0)  # 1e15 has one digit, and repr writes 18 characters
def test_a_float_of_32_bits_is_written_as_shortly_as_it_can_be_and_no_shorter(number: float) -> None:
    found, _ = value_at(b"\x72" + struct.pack(">f", number))
    assert struct.pack(">f", found) == struct.pack(">f", number)
    assert _digits(found) <= _digits(number)


def _digits(number: float) -> int:
    return len(Decimal(repr(number)).normalize().as_tuple().digits)
