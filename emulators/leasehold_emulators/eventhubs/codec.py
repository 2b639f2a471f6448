"""AMQP 1.0 values to bytes and back (OASIS amqp-core-types).

It uses no code of an SDK, because a fault that both sides share would not show.

Python      null bool int->long float->double bytes->binary str->string UUID list dict->map; the others: values.py.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

from leasehold_emulators.eventhubs.values import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Malformed,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

Put = Callable[[bytearray, Any], None]
Take = Callable[[bytes, int, int], tuple[Any, int]]
"""Octets, an offset, and how many levels of nested values may follow -> the value, and where it ends."""
LEVELS_MAX = 64

U16 = struct.Struct(">H")
U32 = struct.Struct(">I")
U64 = struct.Struct(">Q")

# --- encoding: each value in its shortest form -------------------------------------------------------------------------

# Type -> the form that fits every value of it, which arrays need: constructor and packing.
FIXED: dict[type, tuple[int, struct.Struct]] = {
    UByte: (0x50, struct.Struct(">B")),
    Byte: (0x51, struct.Struct(">b")),
    UShort: (0x60, U16),
    Short: (0x61, struct.Struct(">h")),
    UInt: (0x70, U32),
    Int: (0x71, struct.Struct(">i")),
    Float: (0x72, struct.Struct(">f")),
    ULong: (0x80, U64),
    Long: (0x81, struct.Struct(">q")),
    int: (0x81, struct.Struct(">q")),
    float: (0x82, struct.Struct(">d")),
    Timestamp: (0x83, struct.Struct(">q")),
    bool: (0x56, struct.Struct(">?")),
}
OCTETS: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    Char: (0x73, lambda value: value.encode("utf-32-be")),
    Decimal32: (0x74, bytes),
    Decimal64: (0x84, bytes),
    Decimal128: (0x94, bytes),
    uuid.UUID: (0x98, lambda value: value.bytes),
}
# Variable length: constructor of the short form (the long one is 0x10 higher).
VARIABLE: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    bytes: (0xA0, bytes),
    str: (0xA1, lambda value: value.encode()),
    Symbol: (0xA3, lambda value: value.encode("ascii")),
}
# Types with shorter forms: the constructors of zero (only if unsigned) and of one octet.
SMALL: dict[type, tuple[int | None, int]] = {
    UInt: (0x43, 0x52),
    ULong: (0x44, 0x53),
    Int: (None, 0x54),
    Long: (None, 0x55),
    int: (None, 0x55),
}


def encode(value: Any) -> bytes:
    """Raises TypeError for what has no type in AMQP, ValueError for a number out of its type's range."""
    out = bytearray()
    put(out, value)
    return bytes(out)


def put(out: bytearray, value: Any) -> None:
    kind = type(value)
    if value is None:
        out.append(0x40)
    elif kind is bool:
        out.append(0x41 if value else 0x42)
    elif kind in SMALL:
        _put_number(out, kind, value)
    elif kind in FIXED or kind in OCTETS:
        out.append((FIXED.get(kind) or OCTETS[kind])[0])
        out += _octets(kind, value)
    elif kind in VARIABLE:
        _put_variable(out, kind, value)
    else:
        _put_compound(out, kind, value)


def _put_number(out: bytearray, kind: type, value: int) -> None:
    zero, one_octet = SMALL[kind]
    if zero is not None and value == 0:
        out.append(zero)
    elif zero is not None and value < 256:
        out += bytes((one_octet, value))
    elif zero is None and -128 <= value < 128:
        out += bytes((one_octet, value & 0xFF))
    else:
        out.append(FIXED[kind][0])
        out += _octets(kind, value)


def _octets(kind: type, value: Any) -> bytes:
    if kind in OCTETS:
        return OCTETS[kind][1](value)
    try:
        return FIXED[kind][1].pack(value)
    except struct.error as error:
        raise ValueError(f"{value!r} is out of the range of {kind.__name__}") from error


def _put_variable(out: bytearray, kind: type, value: Any) -> None:
    code, octets = VARIABLE[kind]
    data = octets(value)
    if len(data) < 256:
        out += bytes((code, len(data)))
    else:
        out.append(code + 0x10)
        out += U32.pack(len(data))
    out += data


def _put_compound(out: bytearray, kind: type, value: Any) -> None:
    if kind is Described:
        out.append(0x00)
        put(out, value.descriptor)
        put(out, value.value)
    elif kind is list:
        if value:
            _put_sized(out, 0xC0, len(value), _joined(value))
        else:
            out.append(0x45)
    elif kind is dict:
        _put_sized(out, 0xC1, 2 * len(value), _joined(part for pair in value.items() for part in pair))
    elif kind is Array:
        _put_sized(out, 0xE0, len(value), _elements(value))
    else:
        raise TypeError(f"AMQP has no type for {kind.__name__}")


def _joined(values: Any) -> bytearray:
    out = bytearray()
    for value in values:
        put(out, value)
    return out


def _put_sized(out: bytearray, code: int, count: int, body: bytes | bytearray) -> None:
    if len(body) < 255 and count < 256:
        out += bytes((code, len(body) + 1, count))
    else:
        out.append(code + 0x10)
        out += U32.pack(len(body) + 4) + U32.pack(count)
    out += body


def _elements(values: list[Any]) -> bytes:
    """One constructor for all elements, then each element without one."""
    if not values:
        return b"\x40"
    kind = type(values[0])
    if any(type(value) is not kind for value in values):
        raise TypeError("the elements of an array are of one type")
    if kind in VARIABLE:
        code, octets = VARIABLE[kind]
        return bytes((code + 0x10,)) + b"".join(U32.pack(len(data)) + data for data in map(octets, values))
    if kind in FIXED or kind in OCTETS:
        code = (FIXED.get(kind) or OCTETS[kind])[0]
        return bytes((code,)) + b"".join(_octets(kind, value) for value in values)
    if kind in (list, dict):
        return _compound_elements(kind, values)
    raise TypeError(f"an array of {kind.__name__} is not supported")


def _compound_elements(kind: type, values: list[Any]) -> bytes:
    out = bytearray((0xD0 if kind is list else 0xD1,))
    for value in values:
        parts = value if kind is list else [part for pair in value.items() for part in pair]
        body = _joined(parts)
        out += U32.pack(len(body) + 4) + U32.pack(len(parts)) + body
    return bytes(out)


# --- decoding: every form there is -------------------------------------------------------------------------------------


def decode(data: bytes) -> Any:
    """The single value in `data`. Raises Malformed."""
    value, end = take(data, 0)
    if end != len(data):
        raise Malformed(f"{len(data) - end} octets after the value")
    return value


def take(data: bytes, at: int) -> tuple[Any, int]:
    """The value that begins at `at`, and where it ends. Raises Malformed."""
    try:
        return TAKE[data[at]](data, at + 1, LEVELS_MAX)
    except (IndexError, KeyError, struct.error, UnicodeDecodeError, OverflowError) as error:
        raise Malformed(f"no AMQP value at octet {at}: {type(error).__name__} {error}") from error


def _nested(data: bytes, at: int, levels: int) -> tuple[Any, int]:
    if not levels:
        raise Malformed(f"values nest more than {LEVELS_MAX} levels deep at octet {at}")
    return TAKE[data[at]](data, at + 1, levels - 1)


def _constant(value: Any) -> Take:
    return lambda _, at, __: (value, at)


def _fixed(kind: type, packed: struct.Struct) -> Take:
    def taken(data: bytes, at: int, levels: int) -> tuple[Any, int]:
        return kind(packed.unpack_from(data, at)[0]), at + packed.size

    return taken


def _slice(data: bytes, at: int, length: int) -> bytes:
    found = bytes(data[at : at + length])
    if len(found) != length:
        raise Malformed(f"{length} octets announced at {at}, {len(found)} there")
    return found


def _of_length(length: int, made: Callable[[bytes], Any]) -> Take:
    return lambda data, at, _: (made(_slice(data, at, length)), at + length)


def _variable(packed: struct.Struct, made: Callable[[bytes], Any]) -> Take:
    def taken(data: bytes, at: int, levels: int) -> tuple[Any, int]:
        (length,) = packed.unpack_from(data, at)
        begin = at + packed.size
        return made(_slice(data, begin, length)), begin + length

    return taken


def _values(data: bytes, at: int, count: int, levels: int) -> tuple[list[Any], int]:
    values = []
    for _ in range(count):
        value, at = _nested(data, at, levels)
        values.append(value)
    return values, at


def _paired(values: list[Any]) -> dict[Any, Any]:
    try:
        return dict(zip(values[::2], values[1::2], strict=True))
    except (TypeError, ValueError) as error:
        raise Malformed(f"no map: {error}") from error


def _sized(packed: struct.Struct, made: Callable[[list[Any]], Any]) -> Take:
    def taken(data: bytes, at: int, levels: int) -> tuple[Any, int]:
        size, count = packed.unpack_from(data, at), packed.unpack_from(data, at + packed.size)
        values, end = _values(data, at + 2 * packed.size, count[0], levels)
        if end != at + packed.size + size[0]:
            raise Malformed(f"{size[0]} octets announced at {at}, {end - at - packed.size} there")
        return made(values), end

    return taken


def _array(packed: struct.Struct) -> Take:
    def taken(data: bytes, at: int, levels: int) -> tuple[Any, int]:
        (size,), (count,) = packed.unpack_from(data, at), packed.unpack_from(data, at + packed.size)
        end = at + packed.size + size
        at += 2 * packed.size
        values = Array()
        if count:
            if not levels:
                raise Malformed(f"values nest more than {LEVELS_MAX} levels deep at octet {at}")
            element = TAKE[data[at]]
            at += 1
            for _ in range(count):
                value, at = element(data, at, levels - 1)
                values.append(value)
        return values, end

    return taken


def _described(data: bytes, at: int, levels: int) -> tuple[Any, int]:
    descriptor, at = _nested(data, at, levels)
    value, at = _nested(data, at, levels)
    return Described(descriptor, value), at


U8, I8 = struct.Struct(">B"), struct.Struct(">b")
TAKE: dict[int, Take] = {
    0x00: _described,
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(UInt(0)),
    0x44: _constant(ULong(0)),
    0x45: lambda _, at, __: ([], at),
    0x52: _fixed(UInt, U8),
    0x53: _fixed(ULong, U8),
    0x54: _fixed(Int, I8),
    0x55: _fixed(Long, I8),
    **{code: _fixed(kind, packed) for kind, (code, packed) in FIXED.items() if kind is not int},
    0x73: _of_length(4, lambda data: Char(data.decode("utf-32-be"))),
    0x74: _of_length(4, Decimal32),
    0x84: _of_length(8, Decimal64),
    0x94: _of_length(16, Decimal128),
    0x98: _of_length(16, lambda data: uuid.UUID(bytes=data)),
    0xA0: _variable(U8, bytes),
    0xA1: _variable(U8, bytes.decode),
    0xA3: _variable(U8, lambda data: Symbol(data.decode("ascii"))),
    0xB0: _variable(U32, bytes),
    0xB1: _variable(U32, bytes.decode),
    0xB3: _variable(U32, lambda data: Symbol(data.decode("ascii"))),
    0xC0: _sized(U8, list),
    0xC1: _sized(U8, _paired),
    0xD0: _sized(U32, list),
    0xD1: _sized(U32, _paired),
    0xE0: _array(U8),
    0xF0: _array(U32),
}
