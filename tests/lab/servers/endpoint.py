"""An HTTP endpoint that takes entries, as a process of its own: `python -m lab.servers.endpoint [--port N] [--with-parent]`.

POST /entries (JSON array) and /lines (a JSON value a line) keep what they take; `?items=1` answers with a status for each. Orders
are POSTed to /control/NAME: `answers` (what to answer next, one each: status, headers, body, stall), `trouble` (throttle: share
of requests answered 429, with retry_after; items: share of entries, answered item_status, item_times in a row; refused: a text,
entries with it are answered 422; stall: share of requests without an answer; is_dead: every connection is dropped; takes_s: for
each request), `taken` (all, and requests with their headers), `reset`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from leasehold_emulators.hosting import Authority, certified, open_port, wait_until_stopped
from leasehold_emulators.stubborn import Stubborn

STALL_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Trouble:
    throttle: float = 0.0
    items: float = 0.0
    item_status: int = 429
    item_times: int = 1
    refused: str | None = None
    stall: float = 0.0
    is_dead: bool = False
    takes_s: float = 0.0
    retry_after: str | None = None


@dataclass
class State:
    entries: list[Any] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    trouble: Trouble = field(default_factory=Trouble)
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    stubborn: Stubborn = field(default_factory=Stubborn)


class Endpoint:
    def __init__(self) -> None:
        self.state = State()

    async def handle(self, request: web.BaseRequest) -> web.Response:
        body = await request.read()
        if request.path.startswith("/control/"):
            return web.json_response(self._ordered(request.path.rpartition("/")[2], json.loads(body or b"{}")))
        self.state.requests.append({"path": request.path_qs, "headers": dict(request.headers), "bytes": len(body)})
        return await self._answered(request, body)

    def _ordered(self, name: str, what: Any) -> Any:
        if name == "reset":
            self.state = State()
        elif name == "answers":
            self.state.answers += what["answers"]
        elif name == "trouble":
            self.state.trouble = Trouble(**what)
        return {"entries": self.state.entries, "requests": self.state.requests} if name == "taken" else {}

    async def _answered(self, request: web.BaseRequest, body: bytes) -> web.Response:
        state, trouble = self.state, self.state.trouble
        if state.answers:
            answer = state.answers.pop(0)
            await asyncio.sleep(answer.get("stall", 0))
            if not answer.get("takes"):
                text = answer.get("body", "")
                return web.Response(status=answer["status"], headers=answer.get("headers"), text=text)
        if trouble.is_dead and request.transport is not None:
            request.transport.abort()
            return web.Response(status=503)  # which nobody gets
        await asyncio.sleep(STALL_S if state.rng.random() < trouble.stall else trouble.takes_s)
        if state.rng.random() < trouble.throttle:
            headers = {"Retry-After": trouble.retry_after} if trouble.retry_after else None
            return web.Response(status=429, headers=headers)
        entries = [json.loads(line) for line in body.splitlines()] if request.path == "/lines" else json.loads(body)
        statuses = [self._status(entry) for entry in entries]
        state.entries += [entry for entry, status in zip(entries, statuses, strict=True) if status == 201]
        return web.json_response(statuses) if "items" in request.query else web.Response(status=204)

    def _status(self, entry: Any) -> int:
        trouble, what = self.state.trouble, json.dumps(entry)
        if trouble.refused is not None and trouble.refused in what:
            return 422
        share, times = trouble.items, trouble.item_times
        fails = self.state.stubborn.fails(what, self.state.rng, share=share, times=times)
        return trouble.item_status if fails else 201


async def serve(port: int, parent: int | None, folder: Path) -> None:
    endpoint = Endpoint()
    ca = folder / "ca.pem"
    certificate = certified("127.0.0.1", Authority(ca))
    async with AsyncExitStack() as stack:
        plain = await open_port(stack, web.Server(endpoint.handle), "127.0.0.1", port)
        tls = await open_port(stack, web.Server(endpoint.handle), "127.0.0.1", 0, certificate)
        url = f"http://127.0.0.1:{plain}"
        said = {"url": url, "https": f"https://127.0.0.1:{tls}", "ca": str(ca)}
        print(json.dumps(said), flush=True)  # noqa: T201
        await wait_until_stopped(parent)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--with-parent", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(serve(given.port, os.getppid() if given.with_parent else None, Path(folder)))


if __name__ == "__main__":
    main()
