"""The account's HTTP: reads requests, applies faults, and answers each request in one transaction."""

from __future__ import annotations

import asyncio
import fnmatch
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from aiohttp import web
from pydantic import dataclasses as checked

from leasehold_emulators.blob import auth
from leasehold_emulators.blob.answers import answer
from leasehold_emulators.blob.call import REQUESTS, Call, Reply, date, refusal
from leasehold_emulators.blob.conditions import NotModified
from leasehold_emulators.blob.refused import Refused
from leasehold_emulators.blob.store import Store
from leasehold_emulators.orders import STRICT, Count, Name, Positive, Seconds, Status, check_fault, fault_of

BODY_BYTES_MAX = 300 << 20
FAULTS = ("throttle", "fail", "delay", "cut", "lose_reply")


@checked.dataclass(slots=True, kw_only=True, config=STRICT)
class Fault:
    """A rule for requests, and what happens to them.

    do: throttle (503 ServerBusy), fail (`status`), delay (`delay_s`), cut (nothing is done, the connection drops) or lose_reply
    (done, then the connection drops).

    - of: kinds of request (`blob.put`, `container.*`, `*`).
    - container, blob: if given, only requests for these.
    - after: how many matching requests pass first. times: how many it then takes, None for no limit.
    """

    do: str
    of: str = "*"
    container: Name | None = None
    blob: Name | None = None
    after: Count = 0
    times: Positive | None = None
    status: Status = 500
    delay_s: Seconds = 1.0
    number: int = field(default=0, init=False)
    taken: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        check_fault(self, FAULTS, REQUESTS)

    def takes(self, call: Call) -> bool:
        """Whether the fault takes this request. Counts the request."""
        fits = (
            self.times != 0
            and fnmatch.fnmatchcase(call.kind, self.of)
            and self.container in (None, call.container)
            and self.blob in (None, call.blob)
        )
        if not fits:
            return False
        if self.after > 0:
            self.after -= 1
            return False
        self.taken += 1
        if self.times is not None:
            self.times -= 1
        return True

    @property
    def reply(self) -> Reply:
        if self.do == "throttle":
            return refusal(Refused("ServerBusy"))
        return Reply(status=self.status, headers={"x-ms-error-code": "InternalError"})


@dataclass(slots=True, kw_only=True)
class Wire:
    """account: its name, the first part of each path. key: in base64. token: replaces one of Entra. now: in seconds."""

    store: Store
    account: str
    key: str
    token: str
    now: Callable[[], float]
    faults: dict[int, Fault] = field(default_factory=dict)
    counts: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    servers: list[web.Server] = field(default_factory=list)
    faults_made: int = 0

    def order(self, /, **what: Any) -> int:
        fault = fault_of(Fault, what)
        self.faults_made += 1
        fault.number = self.faults_made
        self.faults[fault.number] = fault
        return fault.number

    def listed_faults(self) -> list[dict[str, Any]]:
        return [asdict(fault) for fault in self.faults.values()]

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        call = await read(request)
        fault = next((fault for fault in self.faults.values() if fault.takes(call)), None)
        if fault and fault.do == "delay":
            await asyncio.sleep(fault.delay_s)
        reply = self._reply(call, fault)
        is_dropped = fault is not None and fault.do in ("cut", "lose_reply")
        self.counts[call.container, call.kind, 0 if is_dropped else reply.status] += 1
        if is_dropped and request.transport:
            request.transport.abort()
        return response(call, reply, self.now())

    def _has_blob(self, call: Call) -> bool:
        return self.store.blob(call.container, call.blob) is not None

    def _reply(self, call: Call, fault: Fault | None) -> Reply:
        try:
            auth.check(call, self.key, self.token, datetime.now(UTC), exists=lambda: self._has_blob(call))
            if fault and fault.do in ("throttle", "fail", "cut"):
                return fault.reply
            if call.account != self.account:
                raise Refused("AuthenticationFailed", f"The account is {self.account}.")
            with self.store.transaction():
                return answer(self.store, call, self.now())
        except NotModified:
            return Reply(status=304, headers={"x-ms-error-code": "ConditionNotMet"})
        except Refused as refused:
            return refusal(refused)


async def read(request: web.BaseRequest) -> Call:
    raw, _, _ = request.raw_path.partition("?")
    account, _, rest = unquote(raw).lstrip("/").partition("/")
    container, _, blob = rest.partition("/")
    names = [(name.decode("latin-1"), value.decode("utf-8", "replace")) for name, value in request.raw_headers]
    prefix = "x-ms-meta-"
    return Call(
        method=request.method,
        raw_path=raw,
        account=account,
        container=container,
        blob=blob,
        query=dict(request.query),
        headers={name.lower(): value.strip() for name, value in names},
        metadata={name[len(prefix) :]: value.strip() for name, value in names if name.lower().startswith(prefix)},
        body=await request.read(),
        endpoint=f"{request.scheme}://{request.host}/{account}/",
        is_secure=request.scheme == "https",
    )


def response(call: Call, reply: Reply, now: float) -> web.StreamResponse:
    headers = {
        "x-ms-request-id": str(uuid.uuid4()),
        "x-ms-version": call.headers.get("x-ms-version", "2021-12-02"),
        "Date": date(now),
        "Server": "leasehold",
        **reply.headers,
    }
    if client := call.headers.get("x-ms-client-request-id"):
        headers["x-ms-client-request-id"] = client
    return web.Response(status=reply.status, body=reply.body, headers=headers)
