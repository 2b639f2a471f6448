"""The sink `http`, and the only file with its client in it: aiohttp, one session for each process.

Certificates are verified, redirects are not followed (they would get the headers), proxies of the environment are not used, and
no message contains a header's value or the URL's query.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import aiohttp

from leasehold.common.addresses import checked_url
from leasehold.pipeline.async_sink import AsyncSink, Entry, Failed, Limits, json_row
from leasehold.pipeline.async_sink.json_rows import Content
from leasehold.pipeline.async_sink.request_entry import Destination
from leasehold.pipeline.connectors.http_exchange import (
    ENCODING,
    TYPES,
    Format,
    HttpAnswer,
    Results,
    body_of,
    failed_of,
    inflated,
    request_key,
    shown,
)
from leasehold.pipeline.connectors.network import check_unresolvable
from leasehold.pipeline.endpoint import Endpoint
from leasehold.pipeline.errors import Ambiguous, SinkNotFound, SinkRejected, SinkUnavailable
from leasehold.pipeline.tracing import TraceContext

ANSWER_BYTES_MAX = 4 * 1024 * 1024
SECRET_CHARS_MIN = 6
"""Shorter values are hardly secrets, and may occur anywhere."""


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
    """Raises ValueError if url or limits cannot be right."""
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
            connector = aiohttp.TCPConnector(ssl=self._trusted(), limit=0)  # in_flight_max limits connections
            timeout = aiohttp.ClientTimeout(total=None)  # request_timeout_s cancels
            jar = aiohttp.DummyCookieJar()
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, cookie_jar=jar, auto_decompress=False
            )

    async def submit(self, entries: Sequence[Entry]) -> Failed:
        """A request has one trace context: that of the batch of its first entry."""
        answer = await self._post(body_of(entries, self._format), request_key(entries), entries[0].trace)
        return failed_of(answer, entries, self._results, self._what)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _post(self, body: bytes, key: str, trace: TraceContext | None = None) -> HttpAnswer:
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
        return HttpAnswer(response.status, found, self._masked(body))

    def _masked(self, body: bytes) -> bytes:
        """The body without secrets: an endpoint may repeat what it was sent."""
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
    """What an endpoint may repeat and no message may show, the longest first: the headers, each word of theirs, and the values of
    the URL's query, both encoded and decoded."""
    query = urlsplit(url).query
    words = {word for value in headers for word in value.split()}
    words |= {value for part in query.split("&") for value in (part, part.partition("=")[2])}
    words |= {value for _, value in parse_qsl(query)}
    found = {word for word in words if len(word) >= SECRET_CHARS_MIN} | {value for value in headers if value}
    return tuple(sorted((secret.encode() for secret in found), key=lambda secret: (-len(secret), secret)))


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The decompressed body, or its beginning: at most ANSWER_BYTES_MAX."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(64 * 1024):
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            break
    return inflated(bytes(body), response.headers.get("Content-Encoding", "").lower(), ANSWER_BYTES_MAX)


def _reason(error: Exception) -> str:
    """The error's type and cause, without addresses, which some errors contain."""
    os_error = getattr(error, "os_error", error)
    text = getattr(os_error, "strerror", None)
    return f"{type(error).__name__}, {text}" if text else type(error).__name__
