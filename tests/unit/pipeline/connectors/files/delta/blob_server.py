"""A small Blob service in this process and in memory, whose answers a test can replace. It checks no credentials."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from leasehold.common.azure import StorageAccount, storage_account_of
from leasehold.pipeline.connectors.files.delta import DeltaSink, Location, container_location
from leasehold.pipeline.connectors.files.sink.blobs import BlobContainer

ACCOUNT = "devstoreaccount1"
CONTAINER = "lake"
PREFIX = "transactions"
_TIMES = {"Last-Modified": "Wed, 01 Jan 2020 00:00:00 GMT", "ETag": '"0x1"'}
"""So old that a vacuum deletes whatever is not needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """name: the blob's, empty for a listing. header names are in lower case."""

    method: str
    name: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def version(self) -> int | None:
        """Of the entry of a log that is put."""
        folder, _, file = self.name.rpartition("/")
        is_entry = self.method == "PUT" and folder.endswith("_delta_log") and file.endswith(".json")
        return int(file.removesuffix(".json")) if is_entry else None

    @property
    def is_of_log(self) -> bool:
        return "_delta_log" in self.name or "_delta_log" in self.query.get("prefix", "")


@dataclass(frozen=True, slots=True)
class Answer:
    """status: 0 to close the connection instead."""

    status: int
    code: str = ""
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class BlobServer:
    """replace: gives another answer to a request, or None for the usual one."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.blobs: dict[str, bytes] = {}
        self.requests: list[Request] = []
        self.replace: Callable[[Request], Answer | None] = lambda request: None

    @property
    def account(self) -> StorageAccount:
        return storage_account_of(
            connection_string=f"AccountName={ACCOUNT};AccountKey=c2VjcmV0;BlobEndpoint={self.url}/{ACCOUNT}"
        )

    def location(self, *, timeout_s: float = 20.0) -> Location:
        place = BlobContainer(self.account, CONTAINER, prefix=PREFIX)
        return container_location(
            self.account, CONTAINER, prefix=PREFIX, timeout_s=timeout_s, read=place.get, delete=place.delete
        )

    def sink(self, *, timeout_s: float = 20.0) -> DeltaSink:
        return DeltaSink(BlobContainer(self.account, CONTAINER, prefix=PREFIX), self.location(timeout_s=timeout_s))

    def deleted(self) -> list[str]:
        """Data files."""
        return [each.name for each in self.requests if each.method == "DELETE" and each.name.endswith(".parquet")]

    def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        return self.replace(request) or self._answer(request)

    def _answer(self, request: Request) -> Answer:
        name, is_there = request.name, request.name in self.blobs
        if request.query.get("restype") == "container" and request.method == "PUT":
            return Answer(409, "ContainerAlreadyExists")
        if request.query.get("comp") == "list":
            return self._listed(request.query)
        if request.method == "PUT":
            if is_there and request.headers.get("if-none-match") == "*":
                return Answer(409, "BlobAlreadyExists")
            self.blobs[name] = request.body
            return Answer(201, headers=_TIMES)
        if not is_there:
            return Answer(404, "BlobNotFound")
        if request.method == "DELETE":
            del self.blobs[name]
            return Answer(202)
        return _content(self.blobs[name], request.headers)

    def _listed(self, query: Mapping[str, str]) -> Answer:
        start, delimiter, found, folders = query.get("prefix", ""), query.get("delimiter", ""), "", set()
        for name in sorted(each for each in self.blobs if each.startswith(start)):
            rest = name[len(start) :]
            if delimiter and delimiter in rest:
                folders.add(start + rest.partition(delimiter)[0] + delimiter)
                continue
            times = "".join(
                f"<{each}>{_TIMES['Last-Modified']}</{each}>" for each in ("Creation-Time", "Last-Modified")
            )
            size = f"<Content-Length>{len(self.blobs[name])}</Content-Length><BlobType>BlockBlob</BlobType>"
            kind = "<Etag>0x1</Etag><Content-Type>application/octet-stream</Content-Type>"
            found += f"<Blob><Name>{escape(name)}</Name><Properties>{times}{size}{kind}</Properties></Blob>"
        found += "".join(f"<BlobPrefix><Name>{escape(each)}</Name></BlobPrefix>" for each in sorted(folders))
        body = (
            f"<EnumerationResults ContainerName='{CONTAINER}'><Blobs>{found}</Blobs><NextMarker/></EnumerationResults>"
        )
        return Answer(200, body=body.encode(), headers={"Content-Type": "application/xml"})


def _content(content: bytes, headers: Mapping[str, str]) -> Answer:
    kind = {**_TIMES, "x-ms-blob-type": "BlockBlob", "Content-Type": "application/octet-stream"}
    wanted = headers.get("x-ms-range") or headers.get("range")
    if not wanted:
        return Answer(200, body=content, headers=kind)
    if not content:
        return Answer(416)
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    start = int(first) if first else len(content) - int(last)
    end = min(int(last), len(content) - 1) if first and last else len(content) - 1
    return Answer(
        206, body=content[start : end + 1], headers={**kind, "Content-Range": f"bytes {start}-{end}/{len(content)}"}
    )


@contextmanager
def serving() -> Iterator[BlobServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None: ...

        def _do(self) -> None:
            parts = urlsplit(self.path)
            path = unquote(parts.path).lstrip("/").removeprefix(f"{ACCOUNT}/")
            request = Request(
                method=self.command,
                name=path.partition("/")[2],
                query={name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()},
                headers={name.lower(): value for name, value in self.headers.items()},
                body=self.rfile.read(int(self.headers.get("Content-Length") or 0)),
            )
            answer = blobs.answer(request)
            if not answer.status:
                self.close_connection = True
                return
            body = answer.body or (f"<Error><Code>{answer.code}</Code></Error>".encode() if answer.code else b"")
            self.send_response(answer.status)
            known = {"x-ms-version": "2023-11-03", "x-ms-request-id": "r", **answer.headers}
            if answer.code:
                known["x-ms-error-code"] = answer.code
            for name, value in known.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _do  # noqa: N815 - names of the standard library

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        blobs = BlobServer(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield blobs
        finally:
            server.shutdown()
            thread.join()
