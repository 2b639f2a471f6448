"""Columns made of their buffers. Pure. pyarrow's way from a list or a scalar imports pandas first: a second, for which the first
event, or any command that knows of this connector, would wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa


def repeated(text: str, count: int) -> pa.Array:
    encoded = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * len(encoded)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(encoded * count)])


def whole_numbers(values: Sequence[int]) -> pa.Array:
    """Of 64 bits. Raises OverflowError."""
    return pa.Array.from_buffers(
        pa.int64(), len(values), [None, pa.py_buffer(np.fromiter(values, np.int64, len(values)))]
    )


def octets(values: Sequence[bytes | None]) -> pa.Array:
    try:
        joined = b"".join(values)  # type: ignore[arg-type]  # a null is told by the error
    except TypeError:
        return _with_nulls(pa.binary(), values, b"", octets)
    return _joined(pa.binary(), map(len, values), len(values), joined)  # type: ignore[arg-type]


def texts(values: Sequence[str | None]) -> pa.Array:
    try:
        joined = "".join(values)  # type: ignore[arg-type]  # a null is told by the error
    except TypeError:
        return _with_nulls(pa.string(), values, "", texts)
    whole: Sequence[str] = values  # type: ignore[assignment]  # or it could not be joined
    lengths = map(len, whole) if joined.isascii() else (len(text.encode()) for text in whole)
    return _joined(pa.string(), lengths, len(whole), joined.encode())


def maps(values: Sequence[Sequence[tuple[str, str | None]]]) -> pa.Array:
    """From texts to texts."""
    pairs = list(chain.from_iterable(values))
    names, items = zip(*pairs, strict=True) if pairs else ((), ())
    ends = pa.Array.from_buffers(pa.int32(), len(values) + 1, [None, _ends(map(len, values), len(values))])
    return pa.MapArray.from_arrays(ends, texts(names), texts(items))


def _joined(kind: pa.DataType, lengths: Iterable[int], count: int, joined: bytes) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, _ends(lengths, count), pa.py_buffer(joined)])


def _with_nulls(
    kind: pa.DataType, values: Sequence[Any], empty: Any, of: Callable[[Sequence[Any]], pa.Array]
) -> pa.Array:
    if values.count(None) == len(values):
        return pa.nulls(len(values), kind)
    is_there = np.fromiter((value is not None for value in values), np.bool_, len(values))
    filled = of([empty if value is None else value for value in values])
    validity = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [validity, *filled.buffers()[1:]])


def _ends(lengths: Iterable[int], count: int) -> pa.Buffer:
    """Where each begins, and the last one ends."""
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(np.fromiter(lengths, np.int32, count), out=ends[1:])
    return pa.py_buffer(ends)
