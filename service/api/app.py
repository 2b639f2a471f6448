"""The API put together."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from structlog.typing import FilteringBoundLogger as Log

from service.api.audit import Audit
from service.api.auth import Access
from service.api.dashboard import page
from service.api.docs_page import docs_page
from service.api.events import events
from service.api.health import health
from service.api.metrics import Metrics
from service.api.middleware import Guard
from service.api.operations import operating
from service.api.problems import ANYWHERE, add_handlers, documented
from service.api.queries import reading
from service.api.transfer import moving
from service.group.view import View
from service.telemetry.logs import default_logger

NO_TOKENS = Access()


def create_app(view: View, access: Access = NO_TOKENS, *, log: Log | None = None) -> FastAPI:
    assert view.host is not None, "the API is the face of a host"
    app = FastAPI(
        title="Leasehold",
        version=version("leasehold"),
        description="Leases, hosts, pipelines and lag of one group, and what operators may do about them.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=documented(*ANYWHERE),
    )
    app.include_router(health(view, Metrics(view.host)))
    app.include_router(page())
    for theme in (events, moving, operating, reading):  # a lease's own path takes what the others have not
        app.include_router(theme(view))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))

    add_handlers(app)
    app.add_middleware(Guard, access=access, audit=Audit(log or default_logger(view.host.name), view.host.tally))
    return app
