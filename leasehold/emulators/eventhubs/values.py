"""The types of AMQP 1.0 that Python does not tell apart: what was decoded encodes again as what it was."""

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
    """A plain int encodes as one too."""


class Timestamp(int):
    """Milliseconds since 1970, UTC."""


class Float(float):
    """Of 32 bits; a plain float has 64."""


class Char(str): ...


class Symbol(str): ...


class Decimal32(bytes):
    """IEEE 754 as it stands on the wire; nobody here computes with it."""


class Decimal64(bytes): ...


class Decimal128(bytes): ...


class Array(list[Any]):
    """Of one type, which its first element gives."""


@dataclass(frozen=True, slots=True)
class Described:
    descriptor: Any
    value: Any


class Malformed(Exception):
    """The bytes are no AMQP value."""
