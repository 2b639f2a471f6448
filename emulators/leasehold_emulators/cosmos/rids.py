"""Resource ids: 4 bytes of database, 4 of container, 8 of document or range, in base64 that is safe in a path."""

from __future__ import annotations

import base64
import struct

RANGE = 0x5 << 60  # the top four bits of a child's number are its kind; a document's are zero


def encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode().replace("/", "-")


def database_rid(number: int) -> str:
    return encoded(_database(number))


def container_rid(database: int, number: int) -> str:
    return encoded(_database(database) + _container(number))


def document_rid(container: str, number: int) -> str:
    return encoded(decoded(container) + struct.pack("<Q", number))


def range_rid(container: str, number: int) -> str:
    return encoded(decoded(container) + struct.pack("<Q", RANGE | number))


def decoded(rid: str) -> bytes:
    return base64.b64decode(rid.replace("-", "/"))


def _database(number: int) -> bytes:
    return struct.pack(">I", 0x5A3C0000 + number)


def _container(number: int) -> bytes:
    return struct.pack(">I", 0x80000000 | number)
