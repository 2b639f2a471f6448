"""The account's HTTP: reads requests, applies faults, and answers the other requests."""

from __future__ import annotations

import asyncio
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from urllib.parse import unquote

from aiohttp import web

from leasehold_emulators.cosmos import auth
from leasehold_emulators.cosmos.account import Account
from leasehold_emulators.cosmos.answers import answer
from leasehold_emulators.cosmos.call import Call, Reply, refusal
from leasehold_emulators.cosmos.counts import Counts
from leasehold_emulators.cosmos.faults import Fault, Faults
from leasehold_emulators.cosmos.refused import Refused
from leasehold_emulators.cosmos.where import partitions

BODY_BYTES_MAX = 2 << 20


@dataclass(slots=True, kw_only=True)
class Wire:
    """key: the account's, in base64. token: accepted as if Entra had issued it. now: the account's clock, in seconds."""

    account: Account
    key: str
    token: str
    now: Callable[[], float]
    faults: Faults = field(default_factory=Faults)
    counts: Counts = field(default_factory=Counts)
    servers: list[web.Server] = field(default_factory=list)

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        call = await read(request)
        fault = self.faults.taking(call, range_of(self.account, call))
        if fault and fault.do == "delay":
            await asyncio.sleep(fault.delay_s)
        reply = self._reply(call, fault)
        self.account.journal.commit()
        body = reply.body
        is_dropped = fault is not None and fault.do in ("cut", "lose_reply")
        if is_dropped:
            reply.status = 0
        self.counts.add(call, reply, 0 if is_dropped else len(body))
        if is_dropped and request.transport:
            request.transport.abort()
        return web.Response(status=reply.status or 503, body=body, headers=headers(call, reply))

    def _reply(self, call: Call, fault: Fault | None) -> Reply:
        try:
            auth.check(call, self.key, self.token, datetime.now(UTC))
            if fault and fault.do in ("throttle", "fail", "cut"):
                return fault.reply
            if len(call.body) > BODY_BYTES_MAX:
                raise Refused(413, "Request size is too large.")
            if fault and fault.do == "lag":
                call = replace(call, lag=fault.lsns, again=fault.again)
            return answer(self.account, call, self.now())
        except Refused as refused:
            return refusal(refused)
        except Exception as error:  # 400, because clients retry a 500, and would hide it
            traceback.print_exc()
            return refusal(Refused(400, f"The wire server cannot answer this: {error!r}"))


async def read(request: web.BaseRequest) -> Call:
    path, _, _ = request.raw_path.partition("?")
    return Call(
        method=request.method,
        path=tuple(unquote(part) for part in path.split("/") if part),
        headers={name.lower(): value for name, value in request.headers.items()},
        body=await request.read(),
        endpoint=f"{request.scheme}://{request.host}/",
    )


def range_of(account: Account, call: Call) -> str | None:
    """The id of the range that a request is for, None if it is not for exactly one."""
    if (named := call.header("x-ms-documentdb-partitionkeyrangeid")) is not None:
        return named.rpartition(",")[2]
    match call.path:
        case ("dbs", database, "colls", container, "docs", *_):
            try:
                touched = partitions(account.container(database, container), call)
            except Refused:
                return None
            return touched[0].range.id if len(touched) == 1 else None
    return None


def headers(call: Call, reply: Reply) -> dict[str, str]:
    return {
        "content-type": "application/json",
        "x-ms-activity-id": call.header("x-ms-activity-id") or str(uuid.uuid4()),
        "x-ms-request-charge": "1" if reply.documents <= 1 else f"{1 + reply.documents / 20:.2f}",
        "x-ms-request-duration-ms": "0",
        "x-ms-gatewayversion": "2.0.0",
        "x-ms-serviceversion": "version=2.14.0.0",
        "x-ms-schemaversion": "1.18",
        **reply.headers,
    }
