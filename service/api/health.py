"""This host: what probes and Prometheus ask."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, Response

from leases.errors import StoreError
from service.api import schemas
from service.api.metrics import CONTENT_TYPE, Metrics
from service.api.roles import READING
from service.group.view import View

METRICS_LAG_AGE_MAX_S = 15.0
METRIC = '# TYPE leasehold_leases_owned gauge\nleasehold_leases_owned{pipeline="bank"} 4.0\n'


def health(view: View, metrics: Metrics) -> APIRouter:
    router = APIRouter(tags=["this host"])

    @router.get("/health/live")
    async def live() -> schemas.Health:
        """The process answers. A probe that fails is a reason to restart it."""
        return schemas.Health(status="live")

    @router.get("/health/ready", responses={503: {"model": schemas.Health, "description": "It is not; `reasons`."}})
    async def ready(response: Response) -> schemas.Health:
        """The host takes part in the work: it has read the lease container and is not draining."""
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
            metrics.lag = await view.lag(METRICS_LAG_AGE_MAX_S)
        except StoreError:
            metrics.lag = None  # unknown, and left out: metrics of the host are wanted most when the container is down
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    return router
