"""The way to Azurite, on which answers are lost, delayed, or given by somebody else: HTTP on both sides, in the test's own loop.

async with between(azurite) as wire:          # wire.connection_string leads through it
    wire.fault("lose_reply", "replace")       # what is asked for is done, and nobody is told
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Literal

import aiohttp
from aiohttp import web
from yarl import URL

Do = Literal["cut", "lose_reply", "delay", "hold", "fail", "truncate"]
_OWN = ("Content-Type", "User-Agent", "Accept", "Accept-Encoding")
"""What the client between would add of its own: signatures would not fit any more."""
_HOP = frozenset(("connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"))


@dataclass(slots=True, kw_only=True)
class Fault:
    """do: cut before it is carried out, lose_reply after; fail: answer instead of the service; truncate: cut within it; hold:
    carry it out once it is released.
    """

    do: Do
    of: str = "*"
    after: int = 0
    times: int = 1_000_000
    status: int = 503
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


class Wire:
    def __init__(self, connection_string: str, tls: ssl.SSLContext | None = None) -> None:
        """tls: what clients meet."""
        self._tls = tls
        self.authorizations: list[str] = []
        [self._endpoint] = re.findall(r"BlobEndpoint=(http://[^/;]+)", connection_string)
        self._through = connection_string
        self.connection_string = ""
        self.requests: Counter[str] = Counter()
        self.conditions: list[str] = []
        self._faults: list[Fault] = []
        self._held = 0
        self._changed = asyncio.Condition()
        self._session = aiohttp.ClientSession(auto_decompress=False)

    @property
    def account_url(self) -> str:
        [found] = re.findall(r"BlobEndpoint=([^;]+)", self.connection_string)
        return str(found)

    def fault(self, do: Do, of: str = "*", **more: object) -> None:
        """of: list, look, read, create, set, put, delete, container; with `*`. after: that many of them were let through."""
        self._faults.append(Fault(do=do, of=of, **more))  # type: ignore[arg-type]  # as the fields are

    def heal(self) -> None:
        self._faults.clear()

    async def wait_until_held(self, requests: int) -> None:
        """Until so many requests wait for their release."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._held >= requests)

    async def release(self) -> None:
        """All that are held, and no more are."""
        self.heal()
        async with self._changed:
            self._held = 0
            self._changed.notify_all()

    async def _hold(self) -> None:
        async with self._changed:
            self._held += 1
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._held == 0)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Wire]:
        runner = web.ServerRunner(web.Server(self._serve))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        [(_, port)] = runner.addresses
        scheme = "http" if self._tls is None else "https"
        self.connection_string = self._through.replace(self._endpoint, f"{scheme}://127.0.0.1:{port}")
        try:
            yield self
        finally:
            await self._session.close()
            await runner.cleanup()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        kind = kind_of(request)
        self.requests[kind] += 1
        self.authorizations.append(request.headers.get("Authorization", ""))
        if kind in ("create", "put", "set", "delete"):
            conditions = [name for name in ("If-Match", "If-None-Match") if name in request.headers]
            self.conditions.append(" ".join(conditions))
        fault = self._taking(kind)
        body = await request.read()
        if fault is None:
            return await self._forwarded(request, body)
        if fault.do == "delay":
            await asyncio.sleep(fault.delay_s)
            return await self._forwarded(request, body)
        if fault.do == "hold":
            await self._hold()
            return await self._forwarded(request, body)
        if fault.do == "fail":
            headers = {**fault.headers, **({"x-ms-error-code": fault.code} if fault.code else {})}
            return web.Response(status=fault.status, headers=headers)
        answer = web.Response(status=503) if fault.do == "cut" else await self._forwarded(request, body)
        if fault.do == "truncate":
            answer.headers["Content-Length"] = str(len(answer.body or b"") + 100)  # type: ignore[arg-type]  # it is bytes
            await answer.prepare(request)
            await answer.write_eof()
        assert request.transport is not None
        request.transport.abort()
        return answer

    def _taking(self, kind: str) -> Fault | None:
        """The first that is for a request of that kind; it counts for all."""
        found = None
        for fault in self._faults:
            if not fnmatch(kind, fault.of):
                continue
            if fault.after > 0:
                fault.after -= 1
            elif fault.times > 0 and found is None:
                fault.times -= 1
                found = fault
        return found

    def _passed_on(self, request: web.BaseRequest) -> tuple[str, dict[str, str]]:
        """The path and the headers as the service gets them."""
        headers = {name: value for name, value in request.headers.items() if name.lower() != "connection"}
        return request.raw_path, headers

    async def _forwarded(self, request: web.BaseRequest, body: bytes) -> web.Response:
        path, headers = self._passed_on(request)
        url = URL(self._endpoint + path, encoded=True)
        async with self._session.request(
            request.method, url, headers=headers, data=body, skip_auto_headers=_OWN, allow_redirects=False
        ) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
            if request.method == "HEAD":
                return web.Response(status=answer.status, headers={**kept, "Content-Length": length_of(answer)})
            return web.Response(status=answer.status, headers=kept, body=await answer.read())


def length_of(answer: aiohttp.ClientResponse) -> str:
    return answer.headers.get("Content-Length", "0")


def kind_of(request: web.BaseRequest) -> str:
    asked = request.query
    if asked.get("restype") == "container":
        return "list" if asked.get("comp") == "list" else "container"
    kinds = {"HEAD": "look", "GET": "read", "DELETE": "delete"}
    if request.method in kinds:
        return kinds[request.method]
    if asked.get("comp") == "metadata":
        return "set"
    return "create" if request.headers.get("If-None-Match") == "*" else "put"


@asynccontextmanager
async def between(connection_string: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[Wire]:
    async with Wire(connection_string, tls).serving() as wire:
        yield wire
