"""The types of AMQP 1.0 that Python does not tell apart: a decoded value is encoded as the same type again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class UByte(int): ...


class UShort(int): ...


class UInt(int): ...


class ULong(int): ...


class Byte(int): ...


class Short(int): ...


class Int(int): ...


class Long(int):
    """A plain int is encoded as a long, too."""


class Timestamp(int):
    """Milliseconds since 1970, UTC."""


class Float(float):
    """A number of 32 bits; a plain float has 64."""


class Char(str): ...


class Symbol(str): ...


class Decimal32(bytes):
    """The bytes of IEEE 754 as on the wire; the server does not compute with them."""


class Decimal64(bytes): ...


class Decimal128(bytes): ...


class Array(list[Any]):
    """All elements have one type, that of the first."""


@dataclass(frozen=True, slots=True)
class Described:
    descriptor: Any
    value: Any


class Malformed(Exception):
    """The bytes are not an AMQP value."""
