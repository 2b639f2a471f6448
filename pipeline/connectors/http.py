"""The sink `http`, and the one file with its client in it: aiohttp, one session a process.

Certificates are verified, redirects are not followed (headers would go along), proxies of the environment are not used, and no
message holds a header's value or the address's query.
"""

from __future__ import annotations

import hashlib
import ssl
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

import aiohttp

from leasehold.common.nesting import parsed_json
from leasehold.pipeline.async_sink import AsyncSink, Entry, Failed, Limits, json_row, refused
from leasehold.pipeline.async_sink.request_entry import Content, Destination
from leasehold.pipeline.connectors.network import check_unresolvable
from leasehold.pipeline.errors import Ambiguous, SinkNotFound, SinkRejected, SinkUnavailable
from leasehold.pipeline.limits import JSON_LEVELS_MAX
from leasehold.pipeline.tracing import Endpoint, TraceContext

# The POST of entries, and the meaning of its answer. Pure.


Format = Literal["json", "lines"]
Results = Literal["whole", "items"]
TYPES: Mapping[Format, str] = {"json": "application/json", "lines": "application/x-ndjson"}
RETRIED = (408, 425, 429)
NEVER = (501, 505)
"""Server errors that a second request does not change."""
THROTTLING = (429, 503)
IN_DOUBT = (408, 502, 504)
"""After these the request may still be carried out: a gateway lost it, or gave up waiting."""
OF_CONTENT, TOO_LARGE = (400, 409, 422), 413
"""Statuses for unwanted entries, while others are accepted."""
REASON_CHARS_MAX = 200
ENCODING = "gzip"
"""How an answer may be compressed."""
NEXT = {
    401: "check the header with the credentials",
    403: "grant the account in the headers permission to write there",
    404: "check `url`",
    405: "`url` has to take POST",
    413: "lower batch_bytes_max or batch_entries_max",
    415: "check `format`",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """headers: by lower-case name."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


def checked_url(url: str) -> str:
    """The address as it is. Raises ValueError, without it: it may hold a secret."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_one = False
        parts = urlsplit("")
    if not is_one or parts.username is not None or parts.password is not None or parts.fragment:
        raise ValueError("must be an address like https://example.com/events: put credentials in `headers`")
    return url


def shown(url: str) -> str:
    """For people and for telling sinks apart: without the query, which may hold a signature."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def body_of(entries: Sequence[Entry], format: Format) -> bytes:
    values = [entry.value for entry in entries]
    return b"[" + b",".join(values) + b"]" if format == "json" else b"\n".join(values) + b"\n"


def request_key(entries: Sequence[Entry]) -> str:
    """The same for the same entries."""
    return hashlib.sha256("\n".join(entry.key for entry in entries).encode()).hexdigest()[:32]


def inflated(body: bytes, encoding: str, bytes_max: int) -> bytes:
    """The first bytes of an answer's body, at most bytes_max: a thousandth of them may be what was sent.

    encoding: the answer's Content-Encoding. Empty if it was not requested, or the body is not of that type.
    """
    if encoding in ("", "identity"):
        return body[:bytes_max]
    if encoding != ENCODING:
        return b""
    try:
        return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS).decompress(body, bytes_max)
    except zlib.error:
        return b""


def failed_of(answer: Answer, entries: Sequence[Entry], results: Results, what: str) -> Failed:
    """Those to be sent again. Raises SinkUnavailable or Ambiguous if that is all of them, SinkRejected if it would be no use."""
    if 200 <= answer.status < 300:
        return Failed(()) if results == "whole" else _failed_items(answer, entries, what)
    if _is_retried(answer.status):
        unanswered = Ambiguous if answer.status in IN_DOUBT else SinkUnavailable
        raise unanswered(f"{what} answers {answer.status}{_quoted(answer)}", retry_after_s=retry_after_s(answer))
    following = "set `url` to where it leads" if 300 <= answer.status < 400 else "correct what it names"
    problem = (
        f"{what} answers {answer.status} to {_named(entries)}{_quoted(answer)}: {NEXT.get(answer.status, following)}"
    )
    if answer.status in OF_CONTENT or (answer.status == TOO_LARGE and len(entries) == 1):
        raise refused(problem, *entries[:1] if len(entries) == 1 else [None])
    raise SinkRejected(problem)


def retry_after_s(answer: Answer) -> float | None:
    """Seconds, or a time by the clock of the server."""
    text = answer.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdecimal() and len(text) < 10:
        return float(text)
    try:
        at, now = (parsedate_to_datetime(each) for each in (text, answer.headers.get("date", "")))
        return max(0.0, (at - now).total_seconds())
    except (TypeError, ValueError):
        return None


def _failed_items(answer: Answer, entries: Sequence[Entry], what: str) -> Failed:
    statuses = _statuses(answer, what)
    if len(statuses) != len(entries):
        raise SinkRejected(
            f"{what} answers with {len(statuses)} results to {len(entries)} entries: it has to give one for each, in their"
            " order; or set `results: whole`"
        )
    fatal = [(e, s) for e, s in zip(entries, statuses, strict=True) if not 200 <= s < 300 and not _is_retried(s)]
    if fatal:
        entry, status = fatal[0]
        problem = f"{what} refuses {len(fatal)} of {len(entries)} entries, the first of them {entry.key} with {status}"
        if any(status not in (*OF_CONTENT, TOO_LARGE) for _, status in fatal):
            raise SinkRejected(problem)
        raise refused(problem, *(entry for entry, _ in fatal))
    failed = [(e, s) for e, s in zip(entries, statuses, strict=True) if not 200 <= s < 300]
    return Failed(
        tuple(entry for entry, _ in failed),
        retry_after_s=retry_after_s(answer),
        is_throttled=any(status in THROTTLING for _, status in failed),
        may_land=any(status in IN_DOUBT for _, status in failed),
    )


def _statuses(answer: Answer, what: str) -> list[int]:
    try:
        found = parsed_json(answer.body, JSON_LEVELS_MAX)
        items = found["items"] if isinstance(found, dict) else found
        return [_status(item) for item in _list(items)]
    except (ValueError, KeyError, TypeError):
        raise SinkRejected(
            f"{what} does not answer with results as `results: items` wants them, like [201, 429] or"
            ' {"items": [{"status": 201}]}; or set `results: whole`'
        ) from None


def _list(items: Any) -> list[Any]:
    if not isinstance(items, list):
        raise TypeError
    return items


def _status(item: Any) -> int:
    status = item["status"] if isinstance(item, dict) else item
    if not isinstance(status, int) or isinstance(status, bool):
        raise TypeError
    return status


def _is_retried(status: int) -> bool:
    return status in RETRIED or (500 <= status < 600 and status not in NEVER)


def _named(entries: Sequence[Entry]) -> str:
    return f"entries {entries[0].key} to {entries[-1].key}" if len(entries) > 1 else f"entry {entries[0].key}"


def _quoted(answer: Answer) -> str:
    text = " ".join(answer.body.decode("utf-8", "replace").split())[:REASON_CHARS_MAX]
    return f" ({text})" if text else ""


ANSWER_BYTES_MAX = 4 * 1024 * 1024
SECRET_CHARS_MIN = 6
"""Shorter texts are hardly secrets, and may occur anywhere."""


def http_sink(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    format: Format = "json",
    content: Content = "row",
    results: Results = "whole",
    key_field: str | None = None,
    order_by: str | None = None,
    ca_file: Path | None = None,
    limits: Limits | None = None,
) -> AsyncSink:
    """Raises ValueError where url or limits cannot be right."""
    destination = HttpDestination(url, headers=headers or {}, format=format, results=results, ca_file=ca_file)
    convert = json_row(content, key_field=key_field, order_by=order_by)
    identity, parts = f"http:{shown(url)}", urlsplit(url)
    endpoint = Endpoint(kind="other", system="http", name=shown(url), server=parts.hostname, port=parts.port)
    return AsyncSink(
        destination,
        identity=identity,
        convert=convert,
        limits=limits,
        takes_whole=results == "whole",
        endpoint=endpoint,
    )


class HttpDestination(Destination):
    """Entries are bytes of JSON."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        format: Format,
        results: Results,
        ca_file: Path | None = None,
    ) -> None:
        self._url = checked_url(url)
        self._what = shown(url)
        ours = {"Accept-Encoding": ENCODING, "Content-Type": TYPES[format], "User-Agent": "leasehold"}
        self._headers = {**ours, **headers}
        self._secrets = _secrets(url, headers.values())
        self._format = format
        self._results = results
        self._ca_file = ca_file
        self._session: aiohttp.ClientSession | None = None

    async def prepare(self) -> None:
        """Sends nothing, because the effect of a request is unknown. Only the host's name is looked up."""
        if await check_unresolvable(urlsplit(self._url).hostname or ""):
            raise SinkNotFound(f"{self._what} cannot be reached: its host does not exist: look at `url`")
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._trusted(), limit=0)  # in_flight_max bounds them
            timeout = aiohttp.ClientTimeout(total=None)  # request_timeout_s cancels
            jar = aiohttp.DummyCookieJar()
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, cookie_jar=jar, auto_decompress=False
            )

    async def submit(self, entries: Sequence[Entry]) -> Failed:
        """A request has one context: that of the batch of its first entry."""
        answer = await self._post(body_of(entries, self._format), request_key(entries), entries[0].trace)
        return failed_of(answer, entries, self._results, self._what)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _post(self, body: bytes, key: str, trace: TraceContext | None = None) -> Answer:
        assert self._session is not None, "call prepare first"
        headers = {"Idempotency-Key": key, **({} if trace is None else trace.properties), **self._headers}
        try:
            async with self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                body = await _read(response)
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            raise SinkRejected(
                f"{self._what} shows a certificate that is not trusted here ({type(error.__cause__ or error).__name__}):"
                " replace it, or give its authority's certificate as `ca_file`"
            ) from None
        except aiohttp.ClientConnectorError as error:
            raise SinkUnavailable(f"{self._what} cannot be reached: {_reason(error)}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Ambiguous(f"{self._what} does not answer: {_reason(error)}") from None
        found = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status, found, self._masked(body))

    def _masked(self, body: bytes) -> bytes:
        """An endpoint may say back what it was sent."""
        for secret in self._secrets:
            body = body.replace(secret, b"***")
        return body

    def _trusted(self) -> Any:
        if self._ca_file is None:
            return True
        try:
            return ssl.create_default_context(cafile=self._ca_file)
        except OSError as error:
            raise SinkRejected(f"ca_file '{self._ca_file}' cannot be used: {error.strerror or error}") from error


def _secrets(url: str, headers: Iterable[str]) -> tuple[bytes, ...]:
    """What an endpoint must not be heard to say back, the longest first: the headers, each word of theirs, and the values of the
    URL's query, as they are sent and as they are meant."""
    query = urlsplit(url).query
    words = {word for value in headers for word in value.split()}
    words |= {value for part in query.split("&") for value in (part, part.partition("=")[2])}
    words |= {value for _, value in parse_qsl(query)}
    found = {word for word in words if len(word) >= SECRET_CHARS_MIN} | {value for value in headers if value}
    return tuple(sorted((secret.encode() for secret in found), key=lambda secret: (-len(secret), secret)))


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """All of it, or as much as anybody can want, as it is sent and as it is meant."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(64 * 1024):
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            break
    return inflated(bytes(body), response.headers.get("Content-Encoding", "").lower(), ANSWER_BYTES_MAX)


def _reason(error: Exception) -> str:
    """Without addresses, which some of them have."""
    os_error = getattr(error, "os_error", error)
    text = getattr(os_error, "strerror", None)
    return f"{type(error).__name__}, {text}" if text else type(error).__name__
