"""How much a request may hold, how long it may take, and how many may come. Pure."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, unquote

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from leases.document import parsed
from leases.errors import InvalidDocument
from service.group.status import LeaseStatus

# What the bodies of operators' routes have in common: strict JSON.
#
# The content type must be JSON, which no form of another site's page can send (`service.api.middleware`). Duplicate keys, NaN and
# more than 100 levels of nesting are refused.


# A lease's ETag as HTTP has it. Pure.
#
# It is the document's, quoted. Expiry changes the answer and not the document, so the tag shows it.


_EXPIRED = ";expired"
ETAG_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {
        "headers": {
            "ETag": {"description": "The lease's, for `If-None-Match` and `If-Match`.", "schema": {"type": "string"}}
        }
    }
}
"""Its description for OpenAPI."""


def etag_of(status: LeaseStatus) -> str:
    return tag_of(status.etag, _EXPIRED if status.state == "expired" else "")


def tag_of(etag: str, more: str = "") -> str:
    return f'"{quote(etag, safe="")}{more}"'


def is_known(if_none_match: str, etag: str) -> bool:
    """Whether the client has it already; as the standard has it, a weak tag is as good."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or etag in tags


def meant_by(if_match: str) -> list[str]:
    """The ETags of the documents that a client replaces. The owner's expiry does not matter; weak tags do not count."""
    tags = (tag.strip() for tag in if_match.split(","))
    return [unquote(tag[1:-1].removesuffix(_EXPIRED)) for tag in tags if len(tag) > 1 and tag[0] == tag[-1] == '"']


JSON = "application/json"
LINES = ("application/jsonl", "application/x-ndjson", JSON)


def check_type(request: Request, *types: str) -> None:
    """Raises HTTPException."""
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sent not in types:
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the body has the type {sent[:100]!r}: send `Content-Type: {types[0]}`"
        )


class JsonRoute(APIRoute):
    """A route whose body is JSON, and nothing that merely looks like it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            check_type(request, JSON)
            return await handle(_Strict(request.scope, request.receive))

        return strict


class _Strict(Request):
    async def json(self) -> Any:
        """Raises HTTPException."""
        try:
            return parsed("the body", (await self.body()).decode())
        except UnicodeDecodeError as error:
            raise HTTPException(HTTPStatus.BAD_REQUEST, f"the body is not UTF-8 (byte {error.start})") from None
        except InvalidDocument as error:
            raise HTTPException(HTTPStatus.BAD_REQUEST, _text_of(error)) from None


def _text_of(error: InvalidDocument) -> str:
    return str(error).removesuffix(": restore it, or delete it") + ": send it whole, each key once"


TARGET_BYTES_MAX = 16 * 1024
HEADERS_BYTES_MAX = 32 * 1024
BODY_BYTES_MAX = 128 * 1024
"""A continuation has 32 KiB at most, and each character may be escaped."""
IMPORT_BYTES_MAX = 4 * 1024 * 1024
"""What is larger would keep the loop that renews leases; `leasehold leases import` takes it."""
REQUEST_S = 30.0
IMPORT_S = 180.0
"""It watches for a lease duration whether owners are alive."""
ANSWER_S = 330.0
"""For a whole stream of events, read slowly."""
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
    """What is too large about a request, as far as its head shows."""
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
