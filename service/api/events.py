"""Changes of the group: a stream of server-sent events for each client, from at most one reading a second.

Each client gets the differences from what it got last. A client that reads slowly gets them less often, and then all at once:
nothing piles up for it. Differences that several clients share are computed once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from leasehold.leases.errors import StoreError
from leasehold.service.api import schemas
from leasehold.service.api.auth import READING
from leasehold.service.api.problems import documented
from leasehold.service.api.queries import Strict
from leasehold.service.group.status import GroupStatus, LeaseStatus
from leasehold.service.group.view import View

STREAMS_MAX = 200
STREAM_S = 300.0
"""The streams of a token that was removed end by then."""
PAUSE_S = 1.0
SILENCE_S = 15.0
"""Proxies close connections that carry nothing, so a comment is sent after this time."""
COMMENT = b": still here\n\n"
EVENT = {"type": "object", "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}


class Duration(Strict):
    seconds: float = Field(default=STREAM_S, ge=0, le=STREAM_S, description="How long the stream lasts at most.")


def events(view: View) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["the group"], responses=documented(422), dependencies=READING)
    changes = Changes(view)

    @router.get(
        "/events",
        response_class=StreamingResponse,
        responses={
            200: {
                "description": "Events `ready`, `leases`, `hosts`, `pipelines`, `away`.",
                "content": {"text/event-stream": {"schema": EVENT, "example": "event: ready\ndata: {}\n\n"}},
            }
        },
    )
    async def stream(wanted: Annotated[Duration, Query()]) -> StreamingResponse:
        """Leases, hosts and pipelines as they change, as server-sent events. Load the current ones after `ready`."""
        if changes.streams >= STREAMS_MAX:
            raise HTTPException(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{STREAMS_MAX} clients already watch this host: use another host, or retry later",
                {"retry-after": "15"},
            )
        return ChangeStream(changes, wanted.seconds)

    return router


class ChangeStream(StreamingResponse):
    def __init__(self, changes: Changes, seconds: float) -> None:
        super().__init__(changes.stream(seconds), media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._changes = changes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._changes.streams += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._changes.streams -= 1


class Changes:
    """The changes that clients receive. streams: how many clients there are."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._rendered: tuple[GroupStatus, GroupStatus, bytes] | None = None
        self.streams = 0

    async def stream(self, seconds: float) -> AsyncIterator[bytes]:
        ends_at = asyncio.get_running_loop().time() + seconds
        async with aclosing(self._parts()) as parts:
            with suppress(TimeoutError):
                while True:
                    async with asyncio.timeout_at(ends_at):  # not around `yield`: it would cut a part short
                        part = await anext(parts)
                    yield part

    async def _parts(self) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        seen: GroupStatus | None = None
        is_away, spoke_at = False, loop.time()
        while True:
            try:
                now = await self._view.poll_group()
                part = b"" if seen is None else self._between(seen, now)
                part = _event("ready", {}) if seen is None or is_away else part
                seen, is_away = now, False
            except StoreError as error:
                part = b"" if is_away else _event("away", {"detail": f"the lease store does not answer: {error}"})
                is_away = True
            if part or loop.time() - spoke_at >= SILENCE_S:
                yield part or COMMENT
                spoke_at = loop.time()
            await asyncio.sleep(PAUSE_S)

    def _between(self, before: GroupStatus, now: GroupStatus) -> bytes:
        if self._rendered is None or self._rendered[0] is not before or self._rendered[1] is not now:
            self._rendered = before, now, rendered(difference(before, now))
        return self._rendered[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """pipelines: all of them, or None if nothing about them has changed."""

    leases: Sequence[LeaseStatus] = ()
    leases_gone: Sequence[tuple[str, str]] = ()
    hosts: Sequence[schemas.Host] = ()
    hosts_gone: Sequence[str] = ()
    pipelines: schemas.Pipelines | None = None


def difference(before: GroupStatus, now: GroupStatus) -> Difference:
    """Pure. A lease whose document has not changed is the same object in both readings."""
    if before is now:
        return Difference()
    hosts = {host.name: host for host in schemas.hosts_of(before).items}
    pipelines = schemas.pipelines_of(now)
    return Difference(
        leases=[status for key, status in now.leases.items() if not _is_same(before.leases.get(key), status)],
        leases_gone=sorted(before.leases.keys() - now.leases.keys()),
        hosts=[host for host in schemas.hosts_of(now).items if hosts.get(host.name) != host],
        hosts_gone=sorted(hosts.keys() - now.hosts.keys()),
        pipelines=pipelines if pipelines != schemas.pipelines_of(before) else None,
    )


def rendered(found: Difference) -> bytes:
    parts = []
    if found.leases or found.leases_gone:
        gone = [{"pipeline": pipeline, "partition": partition} for pipeline, partition in found.leases_gone]
        parts.append(
            _event("leases", {"items": [_as_json(schemas.Lease.model_validate(x)) for x in found.leases], "gone": gone})
        )
    if found.hosts or found.hosts_gone:
        parts.append(_event("hosts", {"items": list(map(_as_json, found.hosts)), "gone": list(found.hosts_gone)}))
    if found.pipelines is not None:
        parts.append(_event("pipelines", _as_json(found.pipelines)))
    return b"".join(parts)


def _is_same(before: LeaseStatus | None, now: LeaseStatus) -> bool:
    return before is not None and before.lease is now.lease and before.state == now.state


def _as_json(model: BaseModel) -> Any:
    return model.model_dump(mode="json", by_alias=True)


def _event(name: str, data: object) -> bytes:
    """The JSON contains no line breaks, so nothing in a name can begin a line of the stream."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
