"""What the bodies of operators' routes have in common: strict JSON.

JSON is asked for by name, since no form of another site's page can send it (`service.api.middleware`). A key that comes twice,
NaN, and more than 100 levels of nesting are no JSON here.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from leases.document import parsed
from leases.errors import InvalidDocument

JSON = "application/json"
LINES = ("application/jsonl", "application/x-ndjson", JSON)


def check_type(request: Request, *types: str) -> None:
    """Raises HTTPException."""
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sent not in types:
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the body comes as {sent[:100]!r}: send `Content-Type: {types[0]}`"
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
            raise HTTPException(HTTPStatus.BAD_REQUEST, _told(error)) from None


def _told(error: InvalidDocument) -> str:
    return str(error).removesuffix(": restore it, or delete it") + ": send it whole, each key once"
