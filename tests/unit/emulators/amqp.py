"""Values of AMQP 1.0 at random, and what they look like to the SDK's own codec."""

from __future__ import annotations

import uuid
from typing import Any

from azure.eventhub._pyamqp.types import TYPE, VALUE, AMQPTypes
from hypothesis import strategies as st

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
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)


def unsigned(kind: type, bits: int) -> st.SearchStrategy[Any]:
    return st.integers(0, 2**bits - 1).map(kind)


def signed(kind: type, bits: int) -> st.SearchStrategy[Any]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).map(kind)


def octets(kind: type, size: int) -> st.SearchStrategy[Any]:
    return st.binary(min_size=size, max_size=size).map(kind)


SYMBOLS = st.text(st.characters(max_codepoint=127), max_size=300).map(Symbol)
STRINGS = st.text(st.characters(exclude_categories=("Cs",)), max_size=300)
# What both codecs know.
SHARED = (
    unsigned(UByte, 8),
    unsigned(UShort, 16),
    unsigned(UInt, 32),
    unsigned(ULong, 64),
    signed(Byte, 8),
    signed(Short, 16),
    signed(Int, 32),
    signed(Long, 64),
    signed(Timestamp, 64),
    st.floats(width=32, allow_nan=False).map(Float),
    st.floats(allow_nan=False),
    st.uuids(),
    st.binary(max_size=300),
    STRINGS,
    SYMBOLS,
)
OURS_ALONE = (
    st.characters(exclude_categories=("Cs",)).map(Char),
    octets(Decimal32, 4),
    octets(Decimal64, 8),
    octets(Decimal128, 16),
)
SIMPLE = st.one_of(st.none(), st.booleans(), *SHARED)
KEYS = st.one_of(SYMBOLS, STRINGS, unsigned(ULong, 64))


def within(values: st.SearchStrategy[Any], *more: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values, and lists, maps and described ones of them."""
    return st.recursive(
        values,
        lambda inner: st.one_of(
            st.lists(inner, max_size=6),
            st.dictionaries(KEYS, inner, max_size=6),
            st.builds(Described, st.one_of(SYMBOLS, st.integers(200, 2**64 - 1).map(ULong)), inner),
            *more,
        ),
        max_leaves=12,
    )


ARRAYS = st.one_of(*(st.lists(kind, max_size=5).map(Array) for kind in (*SHARED, *OURS_ALONE, st.booleans())))
VALUES = within(st.one_of(SIMPLE, *OURS_ALONE), ARRAYS)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types throughout: a short is no long, whatever Python says. A plain int is a long."""
    kinds = [Long if type(each) is int else type(each) for each in (one, other)]
    if kinds[0] is not kinds[1]:
        return False
    if isinstance(one, dict):
        return len(one) == len(other) and all(map(same, one, other)) and all(map(same, one.values(), other.values()))
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Described):
        return same(one.descriptor, other.descriptor) and same(one.value, other.value)
    return bool(one == other)


THEIRS = {
    UByte: AMQPTypes.ubyte,
    UShort: AMQPTypes.ushort,
    UInt: AMQPTypes.uint,
    ULong: AMQPTypes.ulong,
    Byte: AMQPTypes.byte,
    Short: AMQPTypes.short,
    Int: AMQPTypes.int,
    Long: AMQPTypes.long,
    Timestamp: AMQPTypes.timestamp,
    Float: AMQPTypes.float,
    float: AMQPTypes.double,
    bool: AMQPTypes.boolean,
    uuid.UUID: AMQPTypes.uuid,
    bytes: AMQPTypes.binary,
    str: AMQPTypes.string,
    Symbol: AMQPTypes.symbol,
}


def as_theirs(value: Any) -> Any:
    """The value as `_pyamqp._encode` wants it."""
    match value:
        case None:
            return {TYPE: AMQPTypes.null, VALUE: None}
        case Described():
            pair = (as_theirs(value.descriptor), as_theirs(value.value))
            return {TYPE: AMQPTypes.described, VALUE: pair}
        case dict():
            pairs = [(as_theirs(key), as_theirs(each)) for key, each in value.items()]
            return {TYPE: AMQPTypes.map, VALUE: pairs}
        case list():
            return {TYPE: AMQPTypes.list, VALUE: [as_theirs(each) for each in value]}
        case Symbol():
            return {TYPE: AMQPTypes.symbol, VALUE: value.encode()}
    return {TYPE: THEIRS[type(value)], VALUE: value}


def as_decoded(value: Any) -> Any:
    """The value as `_pyamqp._decode` gives it: text as bytes, numbers without type, described values without descriptor."""
    match value:
        case Described():
            return as_decoded(value.value)
        case dict():
            return {as_decoded(key): as_decoded(each) for key, each in value.items()}
        case list():
            return [as_decoded(each) for each in value]
        case str():
            return value.encode()
    return value
