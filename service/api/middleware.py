"""Around every request: access, size and time limits, headers of every answer, and the log of operators' actions.

It answers errors with a sentence instead of a traceback, and accepts HEAD wherever there is GET. One section is about
requests that other sites can make a browser send.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leasehold.service import dashboard
from leasehold.service.api.audit import AuditLog, OperatorAction, operator_action_of
from leasehold.service.api.auth import FOR_OPERATORS, Access, Caller
from leasehold.service.api.problems import LOOK_FIRST, problem
from leasehold.service.config.types import is_loopback

# How large a request may be, and how long it may take. Pure.


TARGET_BYTES_MAX = 16 * 1024
HEADERS_BYTES_MAX = 32 * 1024
BODY_BYTES_MAX = 128 * 1024
"""A continuation has 32 KiB at most, and each character may be escaped."""
IMPORT_BYTES_MAX = 4 * 1024 * 1024
"""A larger body would delay the heartbeats of this host; `leasehold leases import` accepts it."""
REQUEST_S = 30.0
IMPORT_S = 180.0
"""An import first watches whether owners are alive."""
ANSWER_S = 330.0
"""Enough for a whole stream of events that is read slowly."""
IMPORT = "/api/leases/import"


def body_bytes_max(path: str) -> int:
    return IMPORT_BYTES_MAX if path == IMPORT else BODY_BYTES_MAX


def request_s(path: str) -> float:
    return IMPORT_S if path == IMPORT else REQUEST_S


def excess(
    path: str, raw_path: bytes, query: bytes, headers: Iterable[tuple[bytes, bytes]]
) -> tuple[HTTPStatus, str] | None:
    """What is too large in a request, as far as its head shows; None if nothing is."""
    headers = list(headers)
    if len(raw_path) + len(query) > TARGET_BYTES_MAX:
        return HTTPStatus.REQUEST_URI_TOO_LONG, f"the address is longer than {TARGET_BYTES_MAX} bytes"
    if sum(len(name) + len(value) for name, value in headers) > HEADERS_BYTES_MAX:
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the headers are larger than {HEADERS_BYTES_MAX} bytes"
    declared = dict(headers).get(b"content-length", b"0")
    if not declared.isdigit() or int(declared[:20]) > body_bytes_max(path):
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, too_large(path)
    return None


def too_large(path: str) -> str:
    return f"the body is larger than {body_bytes_max(path)} bytes"


# Which requests another site's page may have made a browser send. Pure.
#
# A page of another site can make a browser send requests to any address that the browser reaches, even this machine's own. Such
# a page cannot forge `Origin`, read the answers of another origin, or send JSON there without a preflight request. A name that
# the page's owner points at 127.0.0.1 (DNS rebinding) shows in `Host`. All of this is for a host without tokens: a browser does
# not send tokens for another site's page.


def objection(headers: Mapping[bytes, bytes]) -> str | None:
    """Why a request without a token is refused; None if it is accepted."""
    host = headers.get(b"host", b"").decode("latin-1")
    if not _is_here(host):
        return "`Host` is not a name of this machine: use localhost or 127.0.0.1, or set api.readers and send a token"
    origin = headers.get(b"origin")
    if origin is not None and _authority(origin.decode("latin-1")) != host.lower():
        return (
            "requests from pages of another origin are refused: open the dashboard of this host, or leave `Origin` out"
        )
    return None


def _is_here(host: str) -> bool:
    """Whether it is localhost or a loopback address, with or without a port."""
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return name is not None and (is_loopback(name) or name.endswith(".localhost"))


def _authority(origin: str) -> str | None:
    """The origin's host and port; None for `null`, the origin of a sandboxed page."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


OPEN = frozenset({"/health/live", "/health/ready", *dashboard.PATHS})
"""Paths that need no token: of probes, which cannot send one, and of the dashboard, which holds no data and lets its reader enter
a token."""
READING = frozenset({"GET", "HEAD"})
HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
WHY_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that needs no call of the application."""

    status: HTTPStatus
    detail: str
    header: tuple[str, str] | None = None


class Guard:
    def __init__(self, app: ASGIApp, access: Access, audit: AuditLog) -> None:
        self._app = app
        self._access = access
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "the server speaks nothing else"
        headers = dict(scope["headers"])
        caller = self._access.of(headers.get(b"authorization"))
        answer = _Answer(send, is_head=scope["method"] == "HEAD")
        state = scope.setdefault("state", {})
        state["caller"] = caller
        action = operator_action_of("GET" if scope["method"] == "HEAD" else scope["method"], scope["path"])
        try:
            if (refusal := self._refusal(scope, headers, caller)) is not None:
                await _refused(refusal)(scope, receive, answer.send)
            else:
                await self._answer(scope, receive, answer)
        finally:
            if action is not None:
                self._note(state.get("action", action), caller, scope, answer)

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes], caller: Caller | None) -> Refusal | None:
        path = scope["path"]
        if (too_much := excess(path, scope["raw_path"], scope["query_string"], scope["headers"])) is not None:
            return Refusal(*too_much)
        if path in OPEN:
            return None
        if self._access.is_open and (why := objection(headers)) is not None:
            return Refusal(HTTPStatus.FORBIDDEN, why)
        if caller is None:
            return Refusal(HTTPStatus.UNAUTHORIZED, UNKNOWN, ("www-authenticate", "Bearer"))
        if scope["method"] not in READING and not caller.may_operate:
            return Refusal(HTTPStatus.FORBIDDEN, FOR_OPERATORS)
        return None

    async def _answer(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        body = _Body(receive, scope["path"])
        deadline = asyncio.timeout(request_s(scope["path"]))
        try:
            async with deadline, answer.give_until(deadline):
                await self._app(asked, body.receive, answer.send)
        except Exception:
            if deadline.expired():
                if not answer.status:
                    await _refused(_late(scope, body))(scope, receive, answer.send)
                return
            if not answer.status:
                detail = "a fault of this host: see its log"
                await problem(HTTPStatus.INTERNAL_SERVER_ERROR, detail)(scope, receive, answer.send)
            raise  # into the server's log

    def _note(self, action: OperatorAction, caller: Caller | None, scope: Scope, answer: _Answer) -> None:
        client = scope.get("client") or ("unknown",)
        status = int(answer.status or HTTPStatus.SERVICE_UNAVAILABLE)
        self._audit.note(action, caller=caller, client=str(client[0]), status=status, why=answer.why)


class _Answer:
    """An answer on its way to the client. status: 0 until it has begun. An answer to HEAD ends with its head."""

    def __init__(self, send: Send, *, is_head: bool) -> None:
        self._send = send
        self._is_head = is_head
        self._problem = b""
        self.status = 0
        self._deadline: asyncio.Timeout | None = None

    @asynccontextmanager
    async def give_until(self, deadline: asyncio.Timeout) -> AsyncIterator[None]:
        """Apply the deadline to the answer's beginning. Once it has begun, it may take ANSWER_S more."""
        self._deadline = deadline
        try:
            yield
        finally:
            self._deadline = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            sent = {name for name, _ in message["headers"]}
            message = {**message, "headers": [*message["headers"], *(each for each in HEADERS if each[0] not in sent)]}
            if self._deadline is not None:
                more_s = 0 if self._is_head else ANSWER_S
                self._deadline.reschedule(asyncio.get_running_loop().time() + more_s)
            await self._send(message)
            if self._is_head:
                await self._send({"type": "http.response.body"})
            return
        if self.status >= 400 and len(self._problem) < WHY_BYTES_MAX:
            self._problem += message.get("body", b"")
        if not self._is_head:
            await self._send(message)

    @property
    def why(self) -> str:
        """The reason for a refusal."""
        try:
            return str(json.loads(self._problem)["detail"]) if self._problem else ""
        except (ValueError, KeyError):
            return ""


class _Body:
    """A request's body, as it arrives, up to the largest size that is accepted."""

    def __init__(self, receive: Receive, path: str) -> None:
        self._receive = receive
        self._path = path
        self._left = body_bytes_max(path)
        self.is_whole = False

    async def receive(self) -> Message:
        """Raises HTTPException if the body is too large."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, too_large(self._path))
            self.is_whole = not message.get("more_body", False)
        return message


UNKNOWN = (
    "authentication required: send `Authorization: Bearer TOKEN` with a token of the file api.readers or api.operators"
)


def _refused(refusal: Refusal) -> ASGIApp:
    return problem(refusal.status, refusal.detail, dict([refusal.header]) if refusal.header else None)


def _late(scope: Scope, body: _Body) -> Refusal:
    within = f"within {request_s(scope['path']):g} s"
    if scope["method"] in READING:
        return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"there was no answer {within}", ("retry-after", "1"))
    if not body.is_whole:
        return Refusal(HTTPStatus.REQUEST_TIMEOUT, f"the body did not arrive {within}", ("connection", "close"))
    return Refusal(
        HTTPStatus.SERVICE_UNAVAILABLE, f"there was no answer {within}, and {LOOK_FIRST}", ("retry-after", "1")
    )
