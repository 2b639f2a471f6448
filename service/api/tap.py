"""`GET /api/tap/...`: samples of what this host reads and delivers of one partition, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send
from structlog.typing import FilteringBoundLogger as Log

from leasehold.leases.lease import LeaseKey
from leasehold.service.api.audit import OperatorAction
from leasehold.service.api.auth import Operator
from leasehold.service.api.events import COMMENT, SILENCE_S, STREAM_S
from leasehold.service.api.masking import Mask
from leasehold.service.api.problems import documented
from leasehold.service.api.queries import Strict, known, lease_in
from leasehold.service.api.rendering import Renderer
from leasehold.service.api.samples import SIDES, TAP_EVENTS, Limits, Sampler, TapEnd, TapReady, event_text
from leasehold.service.errors import NotNow
from leasehold.service.group.view import View
from leasehold.service.worker import Worker, about

TAPS_MAX = 4
"""How many on one host."""
COUNTED_EACH_S = 1.0
OFF = (
    "taps are off on this host: set `api.tap_mask` to the names of the columns and JSON fields to mask, and restart it"
)
EXAMPLE = (
    'event: input\ndata: {"at":"2026-01-31T12:00:00Z","to":"1840","values":{"body":"{\\"account\\":\\"***\\"}"}}\n\n'
)


class TapFilter(Strict):
    side: Literal["input", "output", "both"] = Field(
        default="both", description="`input`: events as the owner reads them. `output`: rows once they are delivered."
    )
    limit: int = Field(default=1000, ge=1, le=10_000, description="The tap ends after this many rows.")
    rows_per_s: int = Field(default=10, ge=1, le=100, description="How many rows a second are shown, of each side.")
    seconds: float = Field(default=60.0, ge=0, le=STREAM_S, description="How long the tap lasts at most.")

    @property
    def limits(self) -> Limits:
        sides = SIDES if self.side == "both" else (self.side,)
        return Limits(sides=sides, rows_per_s=self.rows_per_s, rows_max=self.limit)


def tapping(view: View, mask: Mask | None, log: Log) -> APIRouter:
    """The routes of taps. mask: None if taps are off."""
    router = APIRouter(prefix="/api", tags=["operators"], responses=documented(404, 409, 422))
    open_taps: set[TapStream] = set()
    renderer = Renderer(view.clock.monotonic)

    @router.get(
        "/tap/{pipeline}/{partition:any}",
        response_class=StreamingResponse,
        responses={200: {"description": _events(), "content": {"text/event-stream": _content()}}},
    )
    async def tap(
        pipeline: str, partition: str, wanted: Annotated[TapFilter, Query()], caller: Operator, request: Request
    ) -> StreamingResponse:
        """Samples of what the owner of a lease reads and delivers, live, masked and cut. Only the owner can answer.

        A host parses at most 512 KiB a second for all its taps together, and a slow client misses samples; `left_out` counts
        what is not shown. The work never waits for a tap.
        """
        if mask is None:
            raise NotNow(OFF)
        worker = await _find_worker(view, pipeline, partition)
        if len(open_taps) >= TAPS_MAX:
            raise HTTPException(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{TAPS_MAX} taps are open on this host, its limit: close one, or retry later",
                {"retry-after": "15"},
            )
        client = request.client.host if request.client else "unknown"
        log.info("tap opened", **about(worker.owned.lease), side=wanted.side, who=caller.name, client=client)
        sampler = Sampler(wanted.limits, mask, renderer, monotonic=view.clock.monotonic, now=view.now)
        return TapStream(request, worker, sampler, wanted, open_taps)

    return router


async def _find_worker(view: View, pipeline: str, partition: str) -> Worker:
    """The lease's worker on this host. Raises HTTPException if there is no such lease, NotNow if it is not this host's."""
    assert view.host is not None, "the API is the face of a host"
    known(view, pipeline)
    worker = view.host.workers.get(LeaseKey(pipeline, partition))
    if worker is not None:
        return worker
    status = lease_in(await view.read_group(), pipeline, partition)
    lease = f"lease '{partition}' of pipeline '{pipeline}'"
    owner = status.lease.owner
    if owner is None or owner == view.host.name:
        raise NotNow(f"{lease} has no owner now ({status.state}): its next owner can be tapped")
    raise NotNow(
        f"{lease} belongs to host '{owner}', and this is '{view.host.name}': ask that host."
        f" On Kubernetes: kubectl exec {owner} -- leasehold tap ..."
    )


class TapStream(StreamingResponse):
    def __init__(
        self, request: Request, worker: Worker, sampler: Sampler, wanted: TapFilter, open_taps: set[TapStream]
    ) -> None:
        super().__init__(self._parts(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._request = request
        self._worker = worker
        self._sampler = sampler
        self._wanted = wanted
        self._open_taps = open_taps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._open_taps.add(self)
        self._worker.tap.add(self._sampler)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._worker.tap.remove(self._sampler)
            self._sampler.close()
            self._open_taps.discard(self)
            self._note()

    async def _parts(self) -> AsyncIterator[bytes]:
        lease = self._worker.owned.lease
        yield event_text(
            "ready",
            TapReady(
                host=str(lease.owner),
                epoch=lease.epoch,
                rows_per_s=self._wanted.rows_per_s,
                seconds=self._wanted.seconds,
            ),
        )
        async for part in self._samples():
            yield part
        sampler = self._sampler
        sampler.close()
        rest = sampler.take() + event_text("left_out", sampler.left_out)
        yield rest + event_text("end", TapEnd(why=sampler.why_ended or "time", shown=sampler.shown))

    async def _samples(self) -> AsyncIterator[bytes]:
        """Parts, until there are no more or the time is over. The timeout is not around `yield`: it would cut a part short."""
        loop = asyncio.get_running_loop()
        sampler, counted, counted_at, spoke_at = self._sampler, self._sampler.left_out, loop.time(), loop.time()
        ends_at = loop.time() + self._wanted.seconds
        while sampler.why_ended is None and loop.time() < ends_at:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(loop.time() + COUNTED_EACH_S, ends_at)):
                    await sampler.changed.wait()
            part, now = sampler.take(), loop.time()
            if sampler.left_out != counted and now - counted_at >= COUNTED_EACH_S:
                counted, counted_at = sampler.left_out, now
                part += event_text("left_out", counted)
            if not part and now - spoke_at >= SILENCE_S:
                part = COMMENT
            if part:
                yield part
                spoke_at = now

    def _note(self) -> None:
        """What was shown, for the log of operators' actions."""
        lease, counts = self._worker.owned.lease, self._sampler.left_out
        after = {"side": self._wanted.side, "shown": self._sampler.shown, "left_out": counts.input + counts.output}
        self._request.state.action = OperatorAction(
            action="tap", pipeline=lease.pipeline, partition=lease.partition, after=after
        )


def _events() -> str:
    return " ".join(str(model.__doc__).strip() for model in TAP_EVENTS.values())


def _content() -> dict[str, Any]:
    """The description of one event, for OpenAPI."""
    data = [model.model_json_schema(mode="serialization") for model in TAP_EVENTS.values()]
    event = {"type": "string", "enum": list(TAP_EVENTS)}
    return {
        "schema": {"type": "object", "properties": {"event": event, "data": {"oneOf": data}}},
        "example": EXAMPLE,
    }
