"""The dashboard's files, at their paths (service.dashboard): a page, and what it is made of."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Response

from service import dashboard


def page() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    for path, file in dashboard.files().items():
        router.add_api_route(path, partial(_file, file))
    return router


async def _file(file: dashboard.File) -> Response:
    return Response(file.content, media_type=file.media_type, headers={"content-security-policy": dashboard.POLICY})
