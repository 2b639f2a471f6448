"""Every error as problem+json (RFC 9457): one sentence that names the thing and the next step, and no internals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from leasehold.leases.errors import (
    GroupMismatch,
    Incomparable,
    InvalidDocument,
    StoreAmbiguous,
    StoreConflict,
    StoreError,
    StoreMissing,
)
from leasehold.pipeline.errors import EngineUnavailable, FeedUnavailable, PipelineError, SinkUnavailable
from leasehold.service.api import schemas
from leasehold.service.errors import NothingToImport, NotNow
from leasehold.service.texts import readable

SHOWN_MAX = 100
"""How much of a client's own text an error repeats."""
LOOK_FIRST = "it may have been carried out: check before you repeat it"
WHAT: Mapping[int, str] = {
    400: "The body is not JSON, or `cursor` is not a cursor.",
    401: "The token is missing or unknown.",
    403: "The token is a reader's, the page is another origin's, or `Host` is not a name of this machine.",
    404: "There is no such pipeline or lease.",
    408: "The body arrived too slowly.",
    409: "The state of the lease or pipeline does not allow this, or has just changed. Nothing was written.",
    412: "`If-Match` is not the lease's ETag; the answer's `ETag` is.",
    413: "The body is too large.",
    414: "The address is too long.",
    415: "The body has to be JSON.",
    422: "The request cannot be understood.",
    428: "`If-Match` is missing.",
    431: "The headers are too large.",
    500: "A fault of this host.",
    503: "The lease store, or the feed, does not answer (in time), or there are too many requests.",
}
ANYWHERE = (401, 403, 413, 414, 431, 500, 503)
UNAVAILABLE = (FeedUnavailable, SinkUnavailable, EngineUnavailable)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """A route's errors, for OpenAPI."""
    return {
        status: {
            "description": WHAT[status],
            "content": {"application/problem+json": {"schema": _schema(), "example": _example(status)}},
        }
        for status in statuses
    }


@cache
def _schema() -> dict[str, Any]:
    return schemas.Problem.model_json_schema()


def _example(status: int) -> dict[str, Any]:
    return {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": WHAT[status]}


def shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "...")


def problem(
    status: int, detail: str, headers: Mapping[str, str] | None = None, errors: Iterable[str] | None = None
) -> Response:
    body = schemas.Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=readable(detail),
        errors=tuple(errors) if errors is not None else None,
    )
    return JSONResponse(
        body.model_dump(exclude_none=True), status, headers=headers, media_type="application/problem+json"
    )


def add_handlers(app: FastAPI) -> None:
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _request_problem)
    for kind in (StoreError, InvalidDocument, Incomparable, GroupMismatch):
        app.add_exception_handler(kind, _leases_problem)
    for other in (PipelineError, NotNow, NothingToImport):
        app.add_exception_handler(other, _service_problem)


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for these alone"
    where = shown(request.url.path)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = ", ".join(_methods(request))
        detail = f"{where} does not support {shown(request.method)}: it supports {allowed}"
        return problem(error.status_code, detail, {"allow": allowed})
    if (error.status_code, error.detail) == (404, "Not Found"):
        return problem(error.status_code, f"there is nothing at {where}: see /docs for what exists")
    return problem(error.status_code, error.detail, error.headers)


def _methods(request: Request) -> list[str]:
    """The methods of all routes that a path matches: the path of an action may also be that of a lease."""

    def fits(method: str) -> bool:
        asked = {**request.scope, "method": method}
        return any(route.matches(asked)[0] is Match.FULL for route in request.app.routes)

    return [method for method in ("GET", "POST", "PUT") if fits(method)]


async def _request_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError), "registered for these alone"
    errors = [f"{'.'.join(map(str, e['loc'][1:]))[:SHOWN_MAX] or e['loc'][0]}: {e['msg']}" for e in error.errors()]
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(errors), errors=errors)


async def _leases_problem(request: Request, error: Exception) -> Response:
    match error:
        case StoreMissing():
            return problem(HTTPStatus.NOT_FOUND, str(error))
        case StoreConflict() | GroupMismatch():
            return problem(HTTPStatus.CONFLICT, str(error))
        case StoreAmbiguous():
            return problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"the lease store's answer was lost ({error}), and {LOOK_FIRST}",
                {"retry-after": "1"},
            )
        case InvalidDocument() | Incomparable():
            return problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        case _:
            return problem(
                HTTPStatus.SERVICE_UNAVAILABLE, f"the lease store does not answer: {error}", {"retry-after": "1"}
            )


async def _service_problem(request: Request, error: Exception) -> Response:
    if isinstance(error, UNAVAILABLE):
        return problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error), {"retry-after": "1"})
    status = HTTPStatus.CONFLICT if isinstance(error, NotNow) else HTTPStatus.UNPROCESSABLE_ENTITY
    return problem(status, str(error))
