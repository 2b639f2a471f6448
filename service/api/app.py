"""Assembles the API: its routes and its pages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from html import escape
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import HTMLResponse
from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.distribution import own_version
from leasehold.leases.errors import StoreError
from leasehold.service import dashboard
from leasehold.service.api import schemas
from leasehold.service.api.audit import AuditLog
from leasehold.service.api.auth import READING, Access
from leasehold.service.api.events import events
from leasehold.service.api.masking import Mask
from leasehold.service.api.metrics import CONTENT_TYPE, Metrics
from leasehold.service.api.middleware import Guard
from leasehold.service.api.operations import operating
from leasehold.service.api.problems import ANYWHERE, add_handlers, documented
from leasehold.service.api.queries import reading
from leasehold.service.api.tap import tapping
from leasehold.service.api.transfer import moving
from leasehold.service.group.view import View
from leasehold.service.telemetry.logs import default_logger

# This host: routes for probes and Prometheus.


METRICS_LAG_AGE_MAX_S = 15.0
METRIC = '# TYPE leasehold_leases_owned gauge\nleasehold_leases_owned{pipeline="bank"} 4.0\n'


def health(view: View, metrics: Metrics) -> APIRouter:
    router = APIRouter(tags=["this host"])

    @router.get("/health/live")
    async def live() -> schemas.Health:
        """The process answers. If it does not, restart it."""
        return schemas.Health(status="live")

    @router.get("/health/ready", responses={503: {"model": schemas.Health, "description": "Not ready; see `reasons`."}})
    async def ready(response: Response) -> schemas.Health:
        """The host takes part in the work: it has read the lease store and is not draining."""
        health = view.health()
        if health.is_ready:
            return schemas.Health(status="ready")
        response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
        return schemas.Health(status="not ready", reasons=health.reasons)

    @router.get(
        "/metrics",
        dependencies=READING,
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}, "example": METRIC}}}},
    )
    async def prometheus() -> Response:
        """This host's metrics, in the text format of Prometheus."""
        try:
            metrics.lag = await view.read_lag(METRICS_LAG_AGE_MAX_S)
        except StoreError:
            metrics.lag = None  # unknown, and left out: metrics of the host are wanted most when the container is down
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    return router


# The dashboard's files, at their paths (leasehold.service.dashboard): a page, and the files that it loads.


def page() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    for path, file in dashboard.files().items():
        router.add_api_route(path, partial(_file, file))
    return router


async def _file(file: dashboard.File) -> Response:
    return Response(file.content, media_type=file.media_type, headers={"content-security-policy": dashboard.POLICY})


# The API's page for people, at /docs: routes and parameters from the OpenAPI document, in plain HTML.
#
# FastAPI's own page loads its scripts from another server, which a browser may be unable to reach.


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
  body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem }}
  code {{ font-size: 0.95em }} h2 {{ margin: 2rem 0 0 }} dd {{ margin: 0 0 0.5rem 1.5rem }}
</style>
<h1>{title}</h1>
<p>{description} The full description, for programs: <a href="/openapi.json">/openapi.json</a>.</p>
{routes}
</html>
"""


def docs_page(openapi: Mapping[str, Any]) -> str:
    info = openapi["info"]
    routes = [
        _route(method, path, operation)
        for path, operations in openapi["paths"].items()
        for method, operation in operations.items()
    ]
    title = escape(f"{info['title']} {info['version']}")
    return _PAGE.format(title=title, description=escape(info.get("description", "")), routes="\n".join(routes))


def _route(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parameters = "".join(map(_parameter, operation.get("parameters", ())))
    return (
        f"<h2><code>{escape(method.upper())} {escape(path)}</code></h2>\n"
        f"<p>{escape(operation.get('description') or operation.get('summary', ''))}</p>\n"
        + (f"<dl>{parameters}</dl>" if parameters else "")
    )


def _parameter(parameter: Mapping[str, Any]) -> str:
    name, where = escape(parameter["name"]), escape(parameter["in"])
    return f"<dt><code>{name}</code> ({where})</dt><dd>{escape(parameter.get('description', ''))}</dd>\n"


NO_TOKENS = Access()


def create_app(
    view: View,
    access: Access = NO_TOKENS,
    *,
    log: Log | None = None,
    metrics_partitions: int = 0,
    tap_mask: Mask | None = None,
) -> FastAPI:
    """metrics_partitions: of how many partitions of the host `/metrics` shows the lag.

    tap_mask: what taps mask; None if taps are off.
    """
    assert view.host is not None, "the API is the face of a host"
    log = log or default_logger(view.host.name)
    app = FastAPI(
        title="Leasehold",
        version=own_version(),
        description="Leases, hosts, pipelines and lag of one group, and what operators may do about them.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=documented(*ANYWHERE),
    )
    app.include_router(health(view, Metrics(view.host, partitions_max=metrics_partitions)))
    app.include_router(page())
    for theme in (events, moving, operating, reading):  # the last one matches any other lease's path
        app.include_router(theme(view))
    app.include_router(tapping(view, tap_mask, log))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))

    add_handlers(app)
    app.add_middleware(Guard, access=access, audit=AuditLog(log, view.host.stats))
    return app
