"""How much a request may hold, how long it may take, and how many may come. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

TARGET_BYTES_MAX = 16 * 1024
HEADERS_BYTES_MAX = 32 * 1024
BODY_BYTES_MAX = 128 * 1024
"""A continuation has 32 KiB at most, of which each character may be escaped."""
IMPORT_BYTES_MAX = 4 * 1024 * 1024
"""What is larger would keep the loop that renews leases; `leasehold leases import` takes it."""
REQUEST_S = 30.0
IMPORT_S = 180.0
"""It watches for a lease duration whether owners are alive."""
ANSWER_S = 330.0
"""A whole stream of events, to whoever reads it slowly."""
CONNECTIONS_MAX = 500
"""Many systems let a process have 1,024 files open, connections among them."""
PATIENCE_S = 20.0
"""For the head of a request, whole, and for the next piece of an answer to be read."""

IMPORT = "/api/leases/import"


def body_bytes_max(path: str) -> int:
    return IMPORT_BYTES_MAX if path == IMPORT else BODY_BYTES_MAX


def request_s(path: str) -> float:
    return IMPORT_S if path == IMPORT else REQUEST_S


def excess(
    path: str, raw_path: bytes, query: bytes, headers: Iterable[tuple[bytes, bytes]]
) -> tuple[HTTPStatus, str] | None:
    """What is too large about a request, of which nothing but its head is there."""
    headers = list(headers)
    if len(raw_path) + len(query) > TARGET_BYTES_MAX:
        return HTTPStatus.REQUEST_URI_TOO_LONG, f"the address is longer than {TARGET_BYTES_MAX} bytes"
    if sum(len(name) + len(value) for name, value in headers) > HEADERS_BYTES_MAX:
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the headers are larger than {HEADERS_BYTES_MAX} bytes"
    declared = dict(headers).get(b"content-length", b"0")
    if not declared.isdigit() or int(declared[:20]) > body_bytes_max(path):
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, too_large(path)
    return None


def too_large(path: str) -> str:
    return f"the body is larger than {body_bytes_max(path)} bytes"
