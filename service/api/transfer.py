"""Export and import of leases, as `leasehold leases export` and `import` do it; docs/migration.md walks through them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field
from starlette.exceptions import HTTPException

from leasehold.service.api import schemas
from leasehold.service.api.audit import OperatorAction
from leasehold.service.api.auth import Operator
from leasehold.service.api.operations import JSON, check_type
from leasehold.service.api.problems import documented, problem
from leasehold.service.api.queries import PipelineFilter, known
from leasehold.service.group.import_sources import Import, Source
from leasehold.service.group.migration import Report, execute, export_leases, mode_of, plan_import
from leasehold.service.group.view import View
from leasehold.service.texts import counted

ERRORS_SHOWN_MAX = 100
LINES = ("application/jsonl", "application/x-ndjson", JSON)
_TEXT = {"schema": {"type": "string"}}
_LINE = '{"leasehold":1,"pipeline":{"name":"orders","feed":"f","sink":"s","transform":"","complete":true,"leases":0}}\n'
_BODY = {
    "requestBody": {
        "required": False,
        "description": "Exported leases. Without a body, those that others keep in the lease store itself are imported.",
        "content": {kind: {**_TEXT, "example": _LINE} for kind in LINES},
    }
}


class ExportFilter(PipelineFilter):
    skip_unreadable: bool = Field(
        default=False, description="Leave out leases that cannot be read. Otherwise the answer is 409 if there are any."
    )


class ImportOrder(PipelineFilter):
    pipeline: str = Field(description="The pipeline that gets the leases.")
    source: Source = Field(alias="from", description="What wrote the leases.")
    prefix: str | None = Field(default=None, description="As `--prefix` of the command.")
    apply: bool = Field(default=False, description="Write. Without it, only reports what would change.")
    force: bool = Field(
        default=False, description="Also move back, and import leases that were exported with another feed."
    )


def moving(view: View) -> APIRouter:
    router = APIRouter(prefix="/api/leases", tags=["operators"], responses=documented(404, 409, 422))

    @router.get(
        "/export",
        response_class=Response,
        responses={200: {"description": "JSON lines.", "content": {LINES[0]: {**_TEXT, "example": _LINE}}}},
    )
    async def export(wanted: Annotated[ExportFilter, Query()], caller: Operator) -> Response:
        """All leases with all their fields. Pause the pipelines first, or leases change while they are read."""
        known(view, wanted.pipeline)
        pipelines = [each for name, each in view.pipelines.items() if wanted.pipeline in (None, name)]
        lines, problems = await export_leases(view.keeper, pipelines)
        if problems and not wanted.skip_unreadable:
            unreadable = counted(len(problems), "lease")
            detail = f"{unreadable} cannot be read: repair them, or leave them out with skip_unreadable=true"
            return problem(HTTPStatus.CONFLICT, detail, errors=problems[:ERRORS_SHOWN_MAX])
        return Response("".join(f"{line}\n" for line in lines), media_type=LINES[0])

    @router.post("/import", responses=documented(400, 408, 415), openapi_extra=_BODY)
    async def import_leases(
        wanted: Annotated[ImportOrder, Query()], caller: Operator, request: Request
    ) -> schemas.ImportReport:
        """Take over the positions of other leases. Each is created, moved (in a new generation), unchanged, or refused (`why`).

        As long as one is refused, nothing is written. Leases whose owner is alive are refused: pause the pipeline first. A dead
        owner counts as alive until it has been silent for its duration.
        """
        known(view, wanted.pipeline)
        check_type(request, *LINES)
        notes: list[str] = []
        order = _order(view, wanted, await _read_text(request))
        report = await plan_import(view.keeper, order, clock=view.clock, say=notes.append)
        if wanted.apply:
            report = await execute(view.keeper, order, report)
            _check(report)
            view.forget()
        counts = {**report.counts, "written": len(report.done)}
        after = {name: counts[name] for name in ("created", "moved", "written")}
        request.state.action = OperatorAction(
            action="import", pipeline=wanted.pipeline, after=after, is_change=bool(report.done)
        )
        return schemas.ImportReport(
            **counts,
            notes=tuple(notes),
            changes=tuple(map(schemas.ImportChange.model_validate, report.changes)),
        )

    return router


async def _read_text(request: Request) -> str | None:
    """The body. Raises HTTPException if it is not UTF-8."""
    try:
        return (await request.body()).decode("utf-8-sig") or None
    except UnicodeDecodeError as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"the body is not UTF-8 (byte {error.start})") from None


def _order(view: View, wanted: ImportOrder, text: str | None) -> Import:
    pipeline = view.pipelines[wanted.pipeline]
    return Import(
        pipeline=pipeline,
        source=wanted.source,
        text=text,
        prefix=wanted.prefix,
        mode=mode_of(pipeline.feed),
        now_us=int(view.now().timestamp() * 1e6),
        force=wanted.force,
    )


def _check(report: Report) -> None:
    """Raises HTTPException if not everything was written."""
    if refused := [f"{each.partition}: {each.why}" for each in report.changes if each.kind == "refused"]:
        raise HTTPException(
            HTTPStatus.CONFLICT,
            f"nothing was written, because {counted(len(refused), 'lease is', 'leases are')} refused: {'; '.join(refused[:3])}",
        )
    if report.problems:
        raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, "; ".join(report.problems[:3]))
