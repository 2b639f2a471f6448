"""AMQP 1.0 values, read from their octets with their types kept. Pure.

https://docs.oasis-open.org/amqp/core/v1.0/os/amqp-core-types-v1.0-os.html defines the encodings.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

Taken = tuple[Any, int]
"""A value, and where the next one begins."""
_Reader = Callable[[bytes, int, int], Taken]
"""Octets, an offset, and how many levels of nested values may follow."""
LEVELS_MAX = 100
"""The most levels of values within values: reading them, and writing them as texts, recurses."""
ITEMS_WITHOUT_OCTETS_MAX = 64
"""The most items of an array whose items take no room: only their count is encoded, and there may be many such arrays."""


class Malformed(ValueError):
    """Octets that are not an AMQP value."""


class Symbol(str):
    """An ASCII text, which is a type of its own in AMQP."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970."""

    __slots__ = ()


class AmqpMap(tuple[tuple[Any, Any], ...]):
    """Pairs in order. A key may be any value."""

    __slots__ = ()


class Described(NamedTuple):
    descriptor: Any
    value: Any


def value_at(data: bytes, at: int = 0) -> Taken:
    """The value that begins there. Raises Malformed."""
    try:
        value, end = _take(data, at, LEVELS_MAX)
    except (IndexError, struct.error):
        raise Malformed("it ends early") from None
    if end > len(data):
        raise Malformed("it ends early")
    return value, end


def _take(data: bytes, at: int, levels: int) -> Taken:
    """As `value_at`, but raises IndexError and struct.error too, and may end past the data."""
    return _READERS[data[at]](data, at + 1, levels)


def _one_less(levels: int) -> int:
    if levels == 0:
        raise Malformed(f"it is nested more than {LEVELS_MAX} levels deep")
    return levels - 1


def _described(data: bytes, at: int, levels: int) -> Taken:
    levels = _one_less(levels)
    descriptor, at = _take(data, at, levels)
    value, at = _take(data, at, levels)
    return Described(descriptor, value), at


def _constant(value: Any) -> _Reader:
    return lambda data, at, levels: (value, at)


def _number_reader(layout: str, kind: Callable[[Any], Any] | None = None) -> _Reader:
    number = struct.Struct(layout)
    if kind is None:
        return lambda data, at, levels: (number.unpack_from(data, at)[0], at + number.size)
    return lambda data, at, levels: (kind(number.unpack_from(data, at)[0]), at + number.size)


def _shortest(number: float) -> float:
    """The double with the shortest text that gives the same 32 bits: 0.1, not 0.10000000149011612."""
    if number in (float("inf"), float("-inf")):
        return number
    texts = (f"{number:.{digits}g}" for digits in range(6, 10))
    return next((float(text) for text in texts if struct.pack(">f", float(text)) == struct.pack(">f", number)), number)


def _decimal(bits: int, exponent_bits: int) -> _Reader:
    """IEEE 754 decimals, whose coefficients AMQP writes as binary integers."""
    count = bits // 8
    digits = {32: 7, 64: 16, 128: 34}[bits]
    bias = {32: 101, 64: 398, 128: 6176}[bits]

    def read(data: bytes, at: int, levels: int) -> Taken:
        octets = data[at : at + count]
        if len(octets) < count:
            raise IndexError
        return _decimal_of(int.from_bytes(octets), bits, exponent_bits, digits, bias), at + count

    return read


def _decimal_of(raw: int, bits: int, exponent_bits: int, digits: int, bias: int) -> Decimal:
    sign = raw >> (bits - 1)
    top = (raw >> (bits - 6)) & 0b11111
    if top == 0b11111:
        return Decimal("NaN")
    if top == 0b11110:
        return Decimal("-Infinity" if sign else "Infinity")
    if top >> 3 == 0b11:  # the exponent begins two bits later, and the coefficient with 100
        shift = bits - 3 - exponent_bits
        coefficient = (0b100 << shift) | (raw & ((1 << shift) - 1))
    else:
        shift = bits - 1 - exponent_bits
        coefficient = raw & ((1 << shift) - 1)
    exponent = (raw >> shift) & ((1 << exponent_bits) - 1)
    if coefficient >= 10**digits:
        coefficient = 0  # too many digits: IEEE 754 takes it for zero
    return Decimal((sign, tuple(map(int, str(coefficient))), exponent - bias))


def _character(number: int) -> str:
    """.NET's chars are UTF-16: half of a surrogate pair alone is not a text."""
    is_one = number <= sys.maxunicode and not 0xD800 <= number <= 0xDFFF
    return chr(number) if is_one else "\N{REPLACEMENT CHARACTER}"


def _uuid(data: bytes, at: int, _levels: int) -> Taken:
    octets = data[at : at + 16]
    if len(octets) < 16:
        raise IndexError
    return UUID(bytes=octets), at + 16


def _octets(size: struct.Struct, kind: Callable[[bytes], Any] | None = None) -> _Reader:
    def read(data: bytes, at: int, levels: int) -> Taken:
        begin = at + size.size
        end = begin + size.unpack_from(data, at)[0]
        if end > len(data):
            raise IndexError
        return (data[begin:end] if kind is None else kind(data[begin:end])), end

    return read


def _utf8(octets: bytes) -> str:
    return octets.decode("utf-8", "replace")


def _symbol(octets: bytes) -> Symbol:
    return Symbol(octets.decode("ascii", "replace"))


def _items(size: struct.Struct, kind: Callable[[list[Any]], Any]) -> _Reader:
    def read(data: bytes, at: int, levels: int) -> Taken:
        octets, count = size.unpack_from(data, at)[0], size.unpack_from(data, at + size.size)[0]
        end = at + size.size + octets
        if count > octets or end > len(data):
            raise IndexError
        at += 2 * size.size
        levels = _one_less(levels)
        found = []
        for _ in range(count):
            item, at = _take(data, at, levels)
            found.append(item)
        if at != end:
            raise Malformed("a list or map does not have its announced length")
        return kind(found), end

    return read


def _map(items: list[Any]) -> AmqpMap:
    if len(items) % 2:
        raise Malformed("a map has a key without a value")
    return AmqpMap(zip(items[::2], items[1::2], strict=True))


def _array(size: struct.Struct) -> _Reader:
    def read(data: bytes, at: int, levels: int) -> Taken:
        octets, count = size.unpack_from(data, at)[0], size.unpack_from(data, at + size.size)[0]
        end = at + size.size + octets
        if end > len(data) or count > max(octets, ITEMS_WITHOUT_OCTETS_MAX):
            raise IndexError
        levels = _one_less(levels)
        item, at = _item_reader(data, at + 2 * size.size, levels)
        found = []
        for _ in range(count):
            value, at = item(data, at, levels)
            found.append(value)
        if at != end:
            raise Malformed("an array does not have its announced length")
        return found, end

    return read


def _item_reader(data: bytes, at: int, levels: int) -> tuple[_Reader, int]:
    """The reader of an array's items, whose constructor is encoded only once."""
    if data[at] != 0:
        return _READERS[data[at]], at + 1
    levels = _one_less(levels)
    descriptor, at = _take(data, at + 1, levels)
    inner, at = _item_reader(data, at, levels)

    def read(data: bytes, at: int, levels: int) -> Taken:
        value, at = inner(data, at, _one_less(levels))
        return Described(descriptor, value), at

    return read, at


def _unknown(data: bytes, at: int, _levels: int) -> Taken:
    raise Malformed(f"nothing begins with 0x{data[at - 1]:02x}")


_U8, _U32 = struct.Struct(">B"), struct.Struct(">I")
_READERS: list[_Reader] = [_unknown] * 256
for _code, _reader in {
    0x00: _described,
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(0),
    0x44: _constant(0),
    0x45: lambda data, at, levels: ([], at),
    0x50: _number_reader(">B"),
    0x51: _number_reader(">b"),
    0x52: _number_reader(">B"),
    0x53: _number_reader(">B"),
    0x54: _number_reader(">b"),
    0x55: _number_reader(">b"),
    0x56: _number_reader(">?"),
    0x60: _number_reader(">H"),
    0x61: _number_reader(">h"),
    0x70: _number_reader(">I"),
    0x71: _number_reader(">i"),
    0x72: _number_reader(">f", _shortest),
    0x73: _number_reader(">I", _character),
    0x74: _decimal(32, 8),
    0x80: _number_reader(">Q"),
    0x81: _number_reader(">q"),
    0x82: _number_reader(">d"),
    0x83: _number_reader(">q", Timestamp),
    0x84: _decimal(64, 10),
    0x94: _decimal(128, 14),
    0x98: _uuid,
    0xA0: _octets(_U8),
    0xA1: _octets(_U8, _utf8),
    0xA3: _octets(_U8, _symbol),
    0xB0: _octets(_U32),
    0xB1: _octets(_U32, _utf8),
    0xB3: _octets(_U32, _symbol),
    0xC0: _items(_U8, list),
    0xC1: _items(_U8, _map),
    0xD0: _items(_U32, list),
    0xD1: _items(_U32, _map),
    0xE0: _array(_U8),
    0xF0: _array(_U32),
}.items():
    _READERS[_code] = _reader
