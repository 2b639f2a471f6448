"""The POST of entries, and the meaning of its answer. Pure."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Literal
from urllib.parse import urlsplit

from leasehold.common.nesting import parsed_json
from leasehold.pipeline.async_sink import Entry, Failed, refused
from leasehold.pipeline.errors import Ambiguous, SinkRejected, SinkUnavailable
from leasehold.pipeline.limits import JSON_LEVELS_MAX

Format = Literal["json", "lines"]
Results = Literal["whole", "items"]
TYPES: Mapping[Format, str] = {"json": "application/json", "lines": "application/x-ndjson"}
RETRIED = (408, 425, 429)
NEVER = (501, 505)
"""Server errors that a second request does not change."""
THROTTLING = (429, 503)
IN_DOUBT = (408, 502, 504)
"""After these, the request may still have an effect: a gateway lost its answer, or gave up waiting."""
OF_CONTENT, TOO_LARGE = (400, 409, 422), 413
"""Statuses for entries that are not accepted, while others are."""
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
class HttpAnswer:
    """headers: by lower-case name."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


def shown(url: str) -> str:
    """The URL for people, and for the sink's identity: without the query, which may contain a signature."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def body_of(entries: Sequence[Entry], format: Format) -> bytes:
    values = [entry.value for entry in entries]
    return b"[" + b",".join(values) + b"]" if format == "json" else b"\n".join(values) + b"\n"


def request_key(entries: Sequence[Entry]) -> str:
    """The idempotency key of a request: the same for the same entries."""
    return hashlib.sha256("\n".join(entry.key for entry in entries).encode()).hexdigest()[:32]


def inflated(body: bytes, encoding: str, bytes_max: int) -> bytes:
    """The first bytes of an answer's body, at most bytes_max: the compressed body may be a thousand times as small.

    encoding: the answer's Content-Encoding. The result is empty if it was not requested, or the body does not have it.
    """
    if encoding in ("", "identity"):
        return body[:bytes_max]
    if encoding != ENCODING:
        return b""
    try:
        return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS).decompress(body, bytes_max)
    except zlib.error:
        return b""


def failed_of(answer: HttpAnswer, entries: Sequence[Entry], results: Results, what: str) -> Failed:
    """The entries to send again. Raises SinkUnavailable or Ambiguous if all have to be, SinkRejected if that would not help."""
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


def retry_after_s(answer: HttpAnswer) -> float | None:
    """The answer's Retry-After in seconds; a date counts by the clock of the server."""
    text = answer.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdecimal() and len(text) < 10:
        return float(text)
    try:
        at, now = (parsedate_to_datetime(each) for each in (text, answer.headers.get("date", "")))
        return max(0.0, (at - now).total_seconds())
    except (TypeError, ValueError):
        return None


def _failed_items(answer: HttpAnswer, entries: Sequence[Entry], what: str) -> Failed:
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


def _statuses(answer: HttpAnswer, what: str) -> list[int]:
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


def _quoted(answer: HttpAnswer) -> str:
    text = " ".join(answer.body.decode("utf-8", "replace").split())[:REASON_CHARS_MAX]
    return f" ({text})" if text else ""
