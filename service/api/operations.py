"""The routes of operators' actions on leases and pipelines: release, handoff, reset, close, pause, resume.
leasehold.service.group carries them out."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from fastapi.routing import APIRoute
from pydantic import Field
from starlette.exceptions import HTTPException

from leasehold.leases.document import parsed
from leasehold.leases.errors import InvalidDocument, StoreConflict
from leasehold.leases.pause_orders import Control
from leasehold.leases.tenure import VersionedLease
from leasehold.service.api import schemas
from leasehold.service.api.audit import OperatorAction, lease_facts
from leasehold.service.api.auth import Operator
from leasehold.service.api.problems import documented
from leasehold.service.api.queries import ETAG_RESPONSE, Strict, known, lease_in, meant_by, tag_of
from leasehold.service.errors import NotNow
from leasehold.service.group import actions
from leasehold.service.group.actions import LeaseTransition, cleared_after_s, close_lease, describe, list_partitions
from leasehold.service.group.migration import move, start_in
from leasehold.service.group.status import LeaseStatus, state_of
from leasehold.service.group.view import View
from leasehold.service.stats import Action

ERRORS = documented(400, 404, 408, 409, 415, 422)
STALE = (
    "the lease has changed since: read it again, and send the ETag of this answer if you still want the reset. An owner"
    " writes its lease every few seconds: pause the pipeline first"
)


class Nothing(Strict):
    """An empty body: `{}`."""


class Handoff(Strict):
    to: str = Field(min_length=1, max_length=512, description="The host that should get the lease.", examples=["pod-2"])


class Reset(Strict):
    to: str = Field(
        min_length=1,
        max_length=32 * 1024,
        description="earliest, latest, a time with its offset from UTC, or a continuation.",
        examples=["earliest", "2026-01-31T12:00:00Z", "2000"],
    )


class Close(Strict):
    skip_rest: bool = Field(
        default=False, description="Close it although events are left: they are never read.", examples=[False]
    )
    forget: bool = Field(
        default=False,
        description="Leave no tombstone: hosts delete the document once the partition has gone; if it returns, it is new.",
        examples=[False],
    )


def operating(view: View) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["operators"], responses=ERRORS, route_class=JsonRoute)

    @router.post("/leases/{pipeline}/{partition:any}/release", responses=ETAG_RESPONSE)
    async def release(
        pipeline: str, partition: str, nothing: Nothing, caller: Operator, request: Request, response: Response
    ) -> schemas.LeaseChange:
        """Take a lease from its owner, which finds out at its next write. The position stays, and any host may take the lease."""
        await _check_exists(view, pipeline, partition)
        change = await actions.release_lease(view.keeper, pipeline, partition)
        return _done(view, request, response, "release", change)

    @router.post("/leases/{pipeline}/{partition:any}/handoff", responses=ETAG_RESPONSE)
    async def handoff(
        pipeline: str, partition: str, wanted: Handoff, caller: Operator, request: Request, response: Response
    ) -> schemas.LeaseChange:
        """Have the owner finish its batch, checkpoint, and give the lease to the named host."""
        await _check_exists(view, pipeline, partition)
        hosts = (await view.read_group()).hosts
        change = await actions.hand_over_lease(view.keeper, pipeline, partition, wanted.to, hosts)
        return _done(view, request, response, "handoff", change)

    @router.put("/leases/{pipeline}/{partition:any}/continuation", responses={**ETAG_RESPONSE, **documented(412, 428)})
    async def reset(
        pipeline: str,
        partition: str,
        wanted: Reset,
        caller: Operator,
        request: Request,
        response: Response,
        if_match: Annotated[str | None, Header(description="The lease's ETag, as it was last read.")] = None,
    ) -> schemas.LeaseChange:
        """Set a lease's position, forwards or back. In the new generation, positions that the sink holds no longer count.

        The events between the two positions are skipped or repeated. An active owner loses the lease at its next write.
        """
        await _check_exists(view, pipeline, partition)
        before = _unchanged(view, await view.keeper.read(pipeline, partition), if_match)
        try:
            after = await move(view.keeper, view.pipelines[pipeline], before, start_in(wanted.to))
        except StoreConflict:
            raise _stale(view, await view.keeper.read(pipeline, partition)) from None
        if view.host is not None and (writer := view.host.checkpoint_writers.get(pipeline)) is not None:
            writer.note(after.lease, now=True)
        return _done(view, request, response, "reset", LeaseTransition(before, after))

    @router.post("/leases/{pipeline}/{partition:any}/close", responses=ETAG_RESPONSE)
    async def close(
        pipeline: str, partition: str, wanted: Close, caller: Operator, request: Request, response: Response
    ) -> schemas.LeaseClose:
        """Close the lease of a partition that is done, such as a processed file: no host reads it any longer.

        Answers 409 as long as events are left. An active owner loses the lease at its next write. A reset reopens it.
        """
        await _check_exists(view, pipeline, partition)
        listed = await list_partitions(view.pipelines[pipeline])
        done = await close_lease(
            view.keeper, view.pipelines[pipeline], partition, listed, skip_rest=wanted.skip_rest, forget=wanted.forget
        )
        change = _done(view, request, response, "close", done.change)
        return schemas.LeaseClose(
            **dict(change),
            left=None if done.rest is None else done.rest.events,
            told=describe(done, cleared_after_s=cleared_after_s(view.keeper.timing)),
        )

    @router.post("/pipelines/{name}/pause")
    async def pause(name: str, nothing: Nothing, caller: Operator, request: Request) -> schemas.Order:
        """Pause a pipeline on all hosts until it is resumed: batches in hand are finished or dropped, and leases released."""
        known(view, name)
        order, is_new = await actions.pause_pipeline(view.keeper, name, by=caller.name, at=_now(view))
        return _ordered(view, request, "pause", order, is_new)

    @router.post("/pipelines/{name}/resume")
    async def resume(name: str, nothing: Nothing, caller: Operator, request: Request) -> schemas.Order:
        """Let hosts continue a pipeline from its positions."""
        known(view, name)
        order, is_new = await actions.resume_pipeline(view.keeper, name, by=caller.name, at=_now(view))
        return _ordered(view, request, "resume", order, is_new)

    return router


async def _check_exists(view: View, pipeline: str, partition: str) -> None:
    """Raises HTTPException if there is no such lease."""
    known(view, pipeline)
    lease_in(await view.read_group(), pipeline, partition)


def _unchanged(view: View, seen: VersionedLease, if_match: str | None) -> VersionedLease:
    """The lease, if it is still as the client saw it. Raises HTTPException; NotNow if the lease has ended."""
    if if_match is None or if_match.strip() == "*":
        raise HTTPException(
            HTTPStatus.PRECONDITION_REQUIRED,
            "send `If-Match` with the ETag of GET /api/leases/{pipeline}/{partition}: a reset needs the ETag that you last read",
        )
    if seen.etag not in meant_by(if_match):
        raise _stale(view, seen)
    if seen.lease.children:
        names = ", ".join(f"'{child.partition}'" for child in seen.lease.children)
        raise NotNow(f"lease '{seen.lease.partition}' has ended: reset what continues it, {names}")
    return seen


def _stale(view: View, now: VersionedLease) -> HTTPException:
    view.forget()
    return HTTPException(HTTPStatus.PRECONDITION_FAILED, STALE, {"etag": tag_of(now.etag)})


def _done(
    view: View, request: Request, response: Response, action: Action, change: LeaseTransition
) -> schemas.LeaseChange:
    view.forget()
    lease = change.before.lease
    request.state.action = OperatorAction(
        action=action,
        pipeline=lease.pipeline,
        partition=lease.partition,
        before=lease_facts(lease),
        after=lease_facts(change.after.lease),
        is_change=change.is_change,
    )
    response.headers["etag"] = tag_of(change.after.etag)
    return schemas.LeaseChange(
        changed=change.is_change, before=_lease_model(change.before), after=_lease_model(change.after)
    )


def _lease_model(seen: VersionedLease) -> schemas.Lease:
    return schemas.Lease.model_validate(LeaseStatus(seen.lease, seen.etag, state_of(seen.lease, is_expired=False)))


def _ordered(view: View, request: Request, action: Action, order: Control, is_new: bool) -> schemas.Order:
    view.forget()
    after = {"paused": order.paused, "by": order.by, "at": order.at}
    request.state.action = OperatorAction(action=action, pipeline=order.pipeline, after=after, is_change=is_new)
    return schemas.Order(
        changed=is_new, pipeline=order.pipeline, paused=order.paused, by=order.by or None, at=order.at or None
    )


def _now(view: View) -> str:
    return view.now().astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


# What the bodies of operators' routes have in common: strict JSON.
#
# The content type must be JSON, which no form of another site's page can send (`leasehold.service.api.middleware`). Duplicate
# keys, NaN and more than 100 levels of nesting are refused.


JSON = "application/json"


def check_type(request: Request, *types: str) -> None:
    """Raises HTTPException if the content type is none of these."""
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sent not in types:
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the body has the type {sent[:100]!r}: send `Content-Type: {types[0]}`"
        )


class JsonRoute(APIRoute):
    """A route that accepts only strict JSON as a body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            check_type(request, JSON)
            return await handle(_Strict(request.scope, request.receive))

        return strict


class _Strict(Request):
    async def json(self) -> Any:
        """Raises HTTPException if the body is not strict JSON."""
        try:
            return parsed("the body", (await self.body()).decode())
        except UnicodeDecodeError as error:
            raise HTTPException(HTTPStatus.BAD_REQUEST, f"the body is not UTF-8 (byte {error.start})") from None
        except InvalidDocument as error:
            raise HTTPException(HTTPStatus.BAD_REQUEST, _text_of(error)) from None


def _text_of(error: InvalidDocument) -> str:
    return str(error).removesuffix(": restore it, or delete it") + ": send it whole, each key once"
