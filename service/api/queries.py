"""The group, as read from the lease store: pipelines, hosts, leases, lag, batches. Any host gives the same answers."""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus
from itertools import islice
from typing import Annotated, Any
from urllib.parse import quote, unquote

from fastapi import APIRouter, Header, Query, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException

from leasehold.leases.lease import LeaseKey
from leasehold.service.api import schemas
from leasehold.service.api.auth import READING
from leasehold.service.api.problems import documented, shown
from leasehold.service.group.status import GroupStatus, LeaseState, LeaseStatus
from leasehold.service.group.view import View
from leasehold.service.lag.measurement import Lag
from leasehold.service.texts import counted

_EXPIRED = ";expired"
ETAG_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {
        "headers": {
            "ETag": {"description": "The lease's, for `If-None-Match` and `If-Match`.", "schema": {"type": "string"}}
        }
    }
}
"""The description of the header for OpenAPI."""


class AnyText(PathConvertor):
    """The rest of a path, whatever it contains: Starlette's own stops at a newline, and a partition's name may have one."""

    regex = r"[\s\S]*"


register_url_convertor("any", AnyText())


class Strict(BaseModel):
    """A misspelt key is refused: ignoring it would answer another question."""

    model_config = ConfigDict(extra="forbid")


class PipelineFilter(Strict):
    pipeline: str | None = Field(default=None, description="Only this pipeline.")


class LagFilter(PipelineFilter):
    partly: bool = Field(default=False, description="Answer with what is known, however little that is.")
    unit: schemas.Unit = Field(
        default="events",
        description="Which figure has to be known: `lag` in events, or `seconds`. The answer has both.",
    )


class BatchFilter(PipelineFilter):
    limit: int = Field(default=100, ge=1, le=1000, description="How many of the newest to list.")


class LeaseFilter(PipelineFilter):
    owner: str | None = Field(default=None, description="Only leases of this host.")
    state: LeaseState | None = Field(default=None, description="Only leases in this state.")
    limit: int = Field(default=100, ge=1, le=1000, description="How many on a page.")
    cursor: str | None = Field(default=None, description="Where the page begins: `next` of the page before.")

    def find_place(self, pipelines: Collection[str]) -> tuple[str, str]:
        """The lease after which the page begins. Raises HTTPException. No pipeline's name contains a slash."""
        pipeline, slash, partition = (self.cursor or "").partition("/")
        if self.cursor and not (slash and pipeline in pipelines):
            why = f", because there is no pipeline {shown(pipeline)}" if slash else ""
            raise HTTPException(
                HTTPStatus.BAD_REQUEST,
                f"{shown(self.cursor)} is not a cursor{why}: take `next` of the page before, or begin without one",
            )
        return pipeline, partition

    def is_met_by(self, status: LeaseStatus) -> bool:
        lease = status.lease
        return (
            self.pipeline in (None, lease.pipeline)
            and self.owner in (None, lease.owner)
            and self.state in (None, status.state)
        )


def reading(view: View) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["the group"], responses=documented(422), dependencies=READING)

    @router.get("/pipelines")
    async def pipelines(none: Annotated[Strict, Query()]) -> schemas.Pipelines:
        """Every pipeline with its leases by state and its failures, and what else needs attention."""
        return schemas.pipelines_of(await view.read_group())

    @router.get("/hosts")
    async def hosts(none: Annotated[Strict, Query()]) -> schemas.Hosts:
        """Every host that has a document in the lease store."""
        return schemas.hosts_of(await view.read_group())

    @router.get("/leases", responses=documented(400, 404))
    async def leases(wanted: Annotated[LeaseFilter, Query()]) -> schemas.Leases:
        """Leases in the order of pipeline and partition, page by page."""
        known(view, wanted.pipeline)
        after = wanted.find_place(view.pipelines)
        found = [status for status in (await view.read_group()).leases.values() if wanted.is_met_by(status)]
        rest = [status for status in found if status.lease.key > after]
        page = rest[: wanted.limit]
        return schemas.Leases(
            items=tuple(map(schemas.Lease.model_validate, page)),
            total=len(found),
            next="/".join(page[-1].lease.key) if len(rest) > len(page) else None,
        )

    @router.get(
        "/leases/{pipeline}/{partition:any}",
        response_model=schemas.LeaseDetail,
        responses={**ETAG_RESPONSE, 304: {"description": "Its ETag is in `If-None-Match`."}, **documented(404)},
    )
    async def lease(
        pipeline: str, partition: str, response: Response, if_none_match: Annotated[str | None, Header()] = None
    ) -> schemas.LeaseDetail | Response:
        """One lease, with the ETag of its document."""
        known(view, pipeline)
        status = lease_in(await view.read_group(), pipeline, partition)
        etag = etag_of(status)
        if if_none_match is not None and is_known(if_none_match, etag):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"etag": etag})
        response.headers["etag"] = etag
        return schemas.LeaseDetail.model_validate(status)

    @router.get("/lag", responses=documented(404))
    async def lag(wanted: Annotated[LagFilter, Query()]) -> schemas.LagReport:
        """How many events the group is behind (`lag`), and how old the oldest of them is (`seconds`).

        KEDA's metrics-api scaler reads it with `valueLocation: lag`, or with `unit=seconds` and `valueLocation: seconds`.
        Answers 503 if more than a tenth of a pipeline's partitions are unknown, unless `partly` is true. With `unit=seconds`,
        also if some are unknown and no event waits in the others.
        """
        known(view, wanted.pipeline)
        whole = await view.read_lag()
        lags = {name: whole.of(name) for name in view.pipelines if wanted.pipeline in (None, name)}
        unknown = [
            _refusal(name, lag, wanted.unit) for name, lag in lags.items() if not schemas.is_known(lag, wanted.unit)
        ]
        if unknown and not wanted.partly:  # too small a number here would scale the group down
            raise HTTPException(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{'; '.join(unknown)}. For what is known: ?partly=true"
            )
        return schemas.LagReport.of(lags, wanted.unit, partly=wanted.partly)

    @router.get("/batches", responses=documented(404))
    async def batches(wanted: Annotated[BatchFilter, Query()]) -> schemas.Batches:
        """The latest deliveries, newest first. Those of other hosts are listed as of their last report."""
        known(view, wanted.pipeline)
        batches = (await view.read_group()).batches
        found = (batch for batch in batches if wanted.pipeline in (None, batch.pipeline))
        return schemas.Batches(items=tuple(islice(found, wanted.limit)))

    return router


def known(view: View, pipeline: str | None) -> None:
    """A misspelt pipeline is an error, not an empty result. Raises HTTPException."""
    if pipeline is not None and pipeline not in view.pipelines:
        names = ", ".join(sorted(view.pipelines)) or "none"
        raise HTTPException(HTTPStatus.NOT_FOUND, f"there is no pipeline {shown(pipeline)}; the pipelines are: {names}")


def lease_in(group: GroupStatus, pipeline: str, partition: str) -> LeaseStatus:
    """Raises HTTPException if there is no such lease, or it cannot be read."""
    key = LeaseKey(pipeline, partition)
    if key in group.leases:
        return group.leases[key]
    if key in group.unreadable:
        raise HTTPException(HTTPStatus.NOT_FOUND, f"the lease cannot be read: {group.unreadable[key]}")
    unread = f" ({counted(len(group.problems), 'problem')}: GET /api/pipelines)" if group.problems else ""
    raise HTTPException(
        HTTPStatus.NOT_FOUND,
        f"pipeline '{pipeline}' has no lease for partition {shown(partition)}{unread}:"
        " GET /api/leases lists the existing ones",
    )


def _refusal(pipeline: str, lag: Lag, unit: schemas.Unit) -> str:
    """Why the lag of a pipeline is unknown."""
    name = "events" if unit == "events" else "seconds"
    first = next(partition for partition in lag.partitions if getattr(partition, name) is None)
    why = first.error or "its feed does not say when events were enqueued"
    what, did = ("lag", "did not answer") if unit == "events" else ("lag in seconds", "have an unknown age")
    return (
        f"the {what} of pipeline '{pipeline}' is unknown: {schemas.unknown_of(lag, unit)} of {len(lag.partitions)} partitions"
        f" {did} (partition '{first.partition}': {why})"
    )


# A lease's ETag in HTTP: the document's, quoted. Expiry is part of the tag, because it changes the answer, but no document. Pure.


def etag_of(status: LeaseStatus) -> str:
    return tag_of(status.etag, _EXPIRED if status.state == "expired" else "")


def tag_of(etag: str, more: str = "") -> str:
    return f'"{quote(etag, safe="")}{more}"'


def is_known(if_none_match: str, etag: str) -> bool:
    """Whether the client already has this version. As the standard demands, a weak tag counts as well."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or etag in tags


def meant_by(if_match: str) -> list[str]:
    """The ETags of the documents that a client means to replace. Expiry does not matter; weak tags do not count."""
    tags = (tag.strip() for tag in if_match.split(","))
    return [unquote(tag[1:-1].removesuffix(_EXPIRED)) for tag in tags if len(tag) > 1 and tag[0] == tag[-1] == '"']
