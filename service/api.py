"""The HTTP face of a running host: what it knows of the whole group, read only.

    app = create_app(view)            # of a process with a host; service.server serves it

Every answer under /api comes from the lease container (through service.view), so it does not matter which host is asked.
Errors are problem+json (RFC 9457). Where there are `readers`, everything but health wants one of their tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from importlib.metadata import version
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leases.errors import StoreError
from service import schemas
from service.access import Tokens
from service.docs_page import docs_page
from service.metrics import CONTENT_TYPE, Metrics
from service.status import Group, LeaseState, LeaseStatus
from service.view import View

METRICS_LAG_AGE_MAX_S = 15.0
OPEN = frozenset({"/health/live", "/health/ready"})
"""Asked by probes, which have no token."""
SHOWN_MAX = 100
"""How much of a client's own text an error repeats."""

HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)


class AnyText(PathConvertor):
    """The rest of a path, whatever it holds: Starlette's own ends at a newline, and a partition may have one."""

    regex = r"[\s\S]*"


register_url_convertor("any", AnyText())


def create_app(view: View, readers: Tokens | None = None) -> FastAPI:
    assert view.host is not None, "the API is the face of a host"
    app = FastAPI(
        title="Leasehold",
        version=version("leasehold"),
        description="Leases, hosts, pipelines and lag of one group.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.include_router(_health(view, Metrics(view.host)))
    app.include_router(_group(view))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))

    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _request_problem)
    app.add_exception_handler(StoreError, _store_problem)
    app.add_middleware(Guard, readers=readers)
    return app


# Health and metrics of this host


def _health(view: View, metrics: Metrics) -> APIRouter:
    router = APIRouter(tags=["this host"])

    @router.get("/health/live")
    async def live() -> schemas.Health:
        """The process answers. A probe that fails is a reason to restart it."""
        return schemas.Health(status="live")

    @router.get("/health/ready", responses={503: {"model": schemas.Health}})
    async def ready(response: Response) -> schemas.Health:
        """The host takes part in the work: it has read the lease container and is not draining."""
        health = view.health()
        if health.is_ready:
            return schemas.Health(status="ready")
        response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
        return schemas.Health(status="not ready", reasons=health.reasons)

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def prometheus() -> Response:
        """This host's metrics, in the text format of Prometheus."""
        try:
            metrics.lag = await view.lag(METRICS_LAG_AGE_MAX_S)
        except StoreError:
            metrics.lag = None  # unknown, and left out: metrics of the host are wanted most when the container is down
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    return router


# The group


class Strict(BaseModel):
    """A misspelt filter is refused: ignoring it would answer another question."""

    model_config = ConfigDict(extra="forbid")


class PipelineFilter(Strict):
    pipeline: str | None = Field(default=None, description="Only this pipeline.")


class BatchFilter(PipelineFilter):
    limit: int = Field(default=100, ge=1, le=1000, description="How many at most, the newest.")


class LeaseFilter(PipelineFilter):
    owner: str | None = Field(default=None, description="Only leases of this host.")
    state: LeaseState | None = Field(default=None, description="Only leases in this state.")
    limit: int = Field(default=100, ge=1, le=1000, description="How many on a page.")
    cursor: str | None = Field(default=None, description="Where the page begins: `next` of the page before.")

    @property
    def after(self) -> tuple[str, str]:
        """The lease behind which the page begins: pipeline names have no slash in them."""
        pipeline, _, partition = (self.cursor or "").partition("/")
        return pipeline, partition

    def is_met_by(self, status: LeaseStatus) -> bool:
        lease = status.lease
        return (
            self.pipeline in (None, lease.pipeline)
            and self.owner in (None, lease.owner)
            and self.state in (None, status.state)
        )


def _problem_response(description: str) -> dict[str, Any]:
    schema = schemas.Problem.model_json_schema()
    return {"description": description, "content": {"application/problem+json": {"schema": schema}}}


NOT_FOUND = _problem_response("There is no such pipeline or lease.")
INVALID = _problem_response("The request cannot be understood.")
UNAVAILABLE = _problem_response("The lease container, or every feed that was asked, does not answer.")


def _group(view: View) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["the group"], responses={422: INVALID, 503: UNAVAILABLE})

    @router.get("/pipelines")
    async def pipelines(none: Annotated[Strict, Query()]) -> schemas.Pipelines:
        """Every pipeline with its leases by state and its failures, and what else needs attention."""
        group = await view.group()
        items = tuple(map(schemas.Pipeline.model_validate, group.pipelines.values()))
        return schemas.Pipelines(items=items, problems=group.problems)

    @router.get("/hosts")
    async def hosts(none: Annotated[Strict, Query()]) -> schemas.Hosts:
        """Every host that has a document in the lease container."""
        group = await view.group()
        return schemas.Hosts(items=tuple(map(schemas.Host.model_validate, group.hosts.values())))

    @router.get("/leases", responses={404: NOT_FOUND})
    async def leases(wanted: Annotated[LeaseFilter, Query()]) -> schemas.Leases:
        """Leases in the order of pipeline and partition, page by page."""
        _known(view, wanted.pipeline)
        found = [status for status in (await view.group()).leases.values() if wanted.is_met_by(status)]
        rest = [status for status in found if status.lease.key > wanted.after]
        page = rest[: wanted.limit]
        return schemas.Leases(
            items=tuple(map(schemas.Lease.model_validate, page)),
            total=len(found),
            next="/".join(page[-1].lease.key) if len(rest) > len(page) else None,
        )

    @router.get(
        "/leases/{pipeline}/{partition:any}",
        response_model=schemas.LeaseDetail,
        responses={304: {"description": "As `If-None-Match` has it."}, 404: NOT_FOUND},
    )
    async def lease(
        pipeline: str, partition: str, response: Response, if_none_match: Annotated[str | None, Header()] = None
    ) -> schemas.LeaseDetail | Response:
        """One lease, with the ETag of its document."""
        _known(view, pipeline)
        status = _found(await view.group(), pipeline, partition)
        etag = _etag(status)
        if if_none_match is not None and _matches(if_none_match, etag):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"etag": etag})
        response.headers["etag"] = etag
        return schemas.LeaseDetail.model_validate(status)

    @router.get("/lag", responses={404: NOT_FOUND})
    async def lag(wanted: Annotated[PipelineFilter, Query()]) -> schemas.LagReport:
        """How many events the group is behind. KEDA's metrics-api scaler reads it with `valueLocation: lag`."""
        _known(view, wanted.pipeline)
        whole = await view.lag()
        lags = {name: whole.of(name) for name in view.pipelines if wanted.pipeline in (None, name)}
        partitions = [partition for lag in lags.values() for partition in lag.partitions]
        if partitions and all(partition.events is None for partition in partitions):
            raise HTTPException(  # a 0 here would scale the group down while nobody knows what waits
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"no partition could tell its lag; '{partitions[0].partition}': {partitions[0].error}",
            )
        return schemas.LagReport.of(lags)

    @router.get("/batches", responses={404: NOT_FOUND})
    async def batches(wanted: Annotated[BatchFilter, Query()]) -> schemas.Batches:
        """What was delivered last, newest first; what other hosts did is as old as their last announcement."""
        _known(view, wanted.pipeline)
        found = [batch for batch in (await view.group()).batches if wanted.pipeline in (None, batch.pipeline)]
        return schemas.Batches(items=tuple(map(schemas.Batch.model_validate, found[: wanted.limit])))

    return router


def _known(view: View, pipeline: str | None) -> None:
    """A misspelt pipeline is no empty one. Raises HTTPException."""
    if pipeline is not None and pipeline not in view.pipelines:
        names = ", ".join(sorted(view.pipelines)) or "none"
        raise HTTPException(HTTPStatus.NOT_FOUND, f"there is no pipeline {_shown(pipeline)}; there are: {names}")


def _found(group: Group, pipeline: str, partition: str) -> LeaseStatus:
    """Raises HTTPException."""
    key = (pipeline, partition)
    if key in group.leases:
        return group.leases[key]
    if key in group.unreadable:
        raise HTTPException(HTTPStatus.NOT_FOUND, f"the lease cannot be read: {group.unreadable[key]}")
    unread = f" ({len(group.problems)} problems: GET /api/pipelines)" if group.problems else ""
    raise HTTPException(
        HTTPStatus.NOT_FOUND,
        f"pipeline '{pipeline}' has no lease for partition {_shown(partition)}{unread}:"
        " GET /api/leases lists those there are",
    )


def _etag(status: LeaseStatus) -> str:
    """The document's, quoted. Expiry is no change of the document and yet one of the answer, so it shows in the tag."""
    tag = quote(status.etag, safe="")
    return f'"{tag};expired"' if status.state == "expired" else f'"{tag}"'


def _matches(if_none_match: str, etag: str) -> bool:
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or etag in tags


# Errors


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for these alone"
    where = _shown(request.url.path)
    details = {
        (404, "Not Found"): f"there is nothing at {where}: /docs says what there is",
        (405, "Method Not Allowed"): f"{where} cannot be asked with {_shown(request.method)}: it is read only",
    }
    return _problem(error.status_code, details.get((error.status_code, error.detail), error.detail), error.headers)


async def _request_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError), "registered for these alone"
    errors = [f"{'.'.join(map(str, e['loc'][1:]))[:SHOWN_MAX]}: {e['msg']}" for e in error.errors()]
    return _problem(HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(errors), errors=errors)


async def _store_problem(request: Request, error: Exception) -> Response:
    return _problem(
        HTTPStatus.SERVICE_UNAVAILABLE, f"the lease container does not answer: {error}", {"retry-after": "1"}
    )


def _problem(
    status: int, detail: str, headers: Mapping[str, str] | None = None, errors: Iterable[str] | None = None
) -> Response:
    problem = schemas.Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        errors=tuple(errors) if errors is not None else None,
    )
    return JSONResponse(
        problem.model_dump(exclude_none=True), status, headers=headers, media_type="application/problem+json"
    )


async def _unauthorized(scope: Scope, receive: Receive, send: Send) -> None:
    detail = "this is for readers: send `Authorization: Bearer TOKEN` with one of the tokens in the file api.readers"
    await _problem(HTTPStatus.UNAUTHORIZED, detail, {"www-authenticate": "Bearer"})(scope, receive, send)


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "...")


class Guard:
    """Around everything: headers on every answer, a sentence instead of a traceback, HEAD wherever there is GET, and no answer
    but health to whoever is no reader."""

    def __init__(self, app: ASGIApp, readers: Tokens | None) -> None:
        self._app = app
        self._readers = readers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_answered = False

        async def guarded(message: Message) -> None:
            nonlocal is_answered
            if message["type"] == "http.response.start":
                is_answered = True
                message = {**message, "headers": [*message["headers"], *HEADERS]}
            await send(message)

        if not self._admits(scope):
            await _unauthorized(scope, receive, guarded)
            return
        asked = {**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope  # the server drops the body
        try:
            await self._app(asked, receive, guarded)
        except Exception:
            if not is_answered:
                problem = _problem(HTTPStatus.INTERNAL_SERVER_ERROR, "a fault of this host: its log tells more")
                await problem(scope, receive, guarded)
            raise  # into the server's log

    def _admits(self, scope: Scope) -> bool:
        if self._readers is None or scope["type"] != "http" or scope["path"] in OPEN:
            return True
        return self._readers.admit(dict(scope["headers"]).get(b"authorization"))
