"""Effective partition keys: the place of a document in the space of hashes, as every SDK computes it (version 2: MurmurHash3)."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

BITS = 126  # the top two of 128 are always zero, so that nothing reaches the upper bound FF
BOTTOM, TOP = "", "FF"
MASK = (1 << 64) - 1
C1, C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def key_of(document: dict[str, Any], paths: Sequence[str]) -> list[Any]:
    """The values at the partition key's paths, in the form of the header: {} for a missing value, an object or a list."""
    found = [at_path(document, path) for path in paths]
    return [{} if isinstance(value, dict | list) else value for value in found]


FIELD = re.compile(r'/?(?:"((?:[^"\\]|\\.)*)"|([^/]+))')


def at_path(document: Any, path: str) -> Any:
    for quoted, plain in FIELD.findall(path):
        name = quoted or plain
        if not isinstance(document, dict) or name not in document:
            return {}
        document = document[name]
    return document


def epk_of(values: Sequence[Any], definition: dict[str, Any]) -> str:
    """The hash for a partition key definition: kind Hash (versions 1 and 2) or MultiHash."""
    return _epk(json.dumps(list(values)), definition.get("kind", "Hash"), definition.get("version", 1))


@lru_cache(maxsize=100_000)
def _epk(values_json: str, kind: str, version: int) -> str:
    values = json.loads(values_json)
    if kind == "MultiHash":
        return "".join(hashed(for_hashing(value)) for value in values)
    if version == 1:
        return _first_version(values)
    return hashed(b"".join(map(for_hashing, values)))


def _first_version(values: list[Any]) -> str:
    from azure.cosmos.partition_key import PartitionKey, _Undefined  # takes a second to import, and is rarely needed

    components = [_Undefined() if value == {} else value for value in values]
    return str(PartitionKey._get_effective_partition_key_for_hash_partitioning(components)).upper()


def for_hashing(value: Any) -> bytes:
    if isinstance(value, str):
        return b"\x08" + value.encode(errors="surrogatepass") + b"\xff"
    if isinstance(value, bool):
        return b"\x03" if value else b"\x02"
    if isinstance(value, int | float):
        return b"\x05" + struct.pack("<d", float(value))
    return b"\x01" if value is None else b"\x00"


def hashed(data: bytes) -> str:
    low, high = murmur3_x64_128(data)
    return f"{high & 0x3FFFFFFFFFFFFFFF:016X}{low:016X}"


def murmur3_x64_128(data: bytes) -> tuple[int, int]:
    """The two halves of the hash with the seed 0, h1 first."""
    h1 = h2 = 0
    whole = len(data) // 16 * 16
    for k1, k2 in struct.iter_unpack("<QQ", data[:whole]):
        h1 = (_rotated(h1 ^ _mixed_first(k1), 27) + h2) * 5 + 0x52DCE729 & MASK
        h2 = (_rotated(h2 ^ _mixed_second(k2), 31) + h1) * 5 + 0x38495AB5 & MASK
    rest = data[whole:].ljust(16, b"\0")
    k1, k2 = struct.unpack("<QQ", rest)
    h1 ^= _mixed_first(k1) ^ len(data)
    h2 ^= _mixed_second(k2) ^ len(data)
    h1 = h1 + h2 & MASK
    h2 = h2 + h1 & MASK
    h1, h2 = _final(h1), _final(h2)
    h1 = h1 + h2 & MASK
    return h1, h2 + h1 & MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & MASK


def _mixed_first(k: int) -> int:
    return _rotated(k * C1 & MASK, 31) * C2 & MASK


def _mixed_second(k: int) -> int:
    return _rotated(k * C2 & MASK, 33) * C1 & MASK


def _final(k: int) -> int:
    k = (k ^ k >> 33) * 0xFF51AFD7ED558CCD & MASK
    k = (k ^ k >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return k ^ k >> 33
