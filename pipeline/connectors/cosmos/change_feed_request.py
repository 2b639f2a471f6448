"""One request for changes and its answer, as plain values: the contents of the wire, without the SDK that carries them. Pure.

https://learn.microsoft.com/rest/api/cosmos-db/list-documents lists the headers of a change feed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Literal

from leasehold.common.azure import cosmos_retry_after_s
from leasehold.common.nesting import parsed_json
from leasehold.pipeline.connectors.cosmos.ranges import RangeSection
from leasehold.pipeline.errors import FeedError, FeedUnavailable, PositionLost
from leasehold.pipeline.event import Receipt
from leasehold.pipeline.limits import JSON_LEVELS_MAX

Mode = Literal["latest", "all_versions"]
GONE, NOT_MODIFIED, OK, TIMEOUT, THROTTLED = 410, 304, 200, 408, 429
OTHER_CONTAINER = 1024
"""Substatus: the container's name leads to another container now than when the client first asked."""
WIRE_FORMAT = "2021-09-15"
"""For all versions and deletes: metadata apart from the document, times as `crts`."""
FROM_NOW = "*"
REASON_CHARS_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """after: a continuation, FROM_NOW, or None for the beginning. since: only what was written at or after this time."""

    place: RangeSection
    after: str | None
    items_max: int
    mode: Mode
    since: datetime | None = None

    def headers(self) -> dict[str, str]:
        headers = {"A-IM": "Incremental Feed", "x-ms-documentdb-partitionkeyrangeid": self.place.range_id}
        if self.mode == "all_versions":
            headers["A-IM"] = "Full-Fidelity Feed"
            headers["x-ms-cosmos-changefeed-wire-format-version"] = WIRE_FORMAT
        if self.place.span is not None:
            headers["x-ms-read-key-type"] = "EffectivePartitionKeyRange"
            headers["x-ms-start-epk"], headers["x-ms-end-epk"] = self.place.span
        if self.after is not None:
            headers["If-None-Match"] = self.after
        if self.since is not None:
            headers["If-Modified-Since"] = _second_before(self.since)
        return headers


def _second_before(time: datetime) -> str:
    """The header means "later than", in whole seconds; times of documents are no more exact."""
    whole = time.astimezone(UTC).replace(microsecond=0)
    earlier = timedelta(seconds=0 if time.microsecond else 1)
    return format_datetime(max(whole - earlier, datetime(1970, 1, 1, tzinfo=UTC)), usegmt=True)


@dataclass(frozen=True, slots=True)
class FeedAnswer:
    """headers: by lower-case name."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def substatus(self) -> int:
        text = self.headers.get("x-ms-substatus", "")
        return int(text) if text.isdecimal() else 0

    @property
    def etag(self) -> str:
        return self.headers.get("etag", "")

    @property
    def session(self) -> str:
        return self.headers.get("x-ms-session-token", "")

    @property
    def receipt(self) -> Receipt:
        try:
            charge = float(self.headers.get("x-ms-request-charge", "0"))
        except ValueError:
            charge = 0.0
        return Receipt(charge, self.session or None)

    @property
    def retry_after_s(self) -> float | None:
        return cosmos_retry_after_s(self.headers)

    @property
    def message(self) -> str:
        """The service's message, for people: one line."""
        text = self.body.decode("utf-8", "replace")
        try:
            found = parsed_json(text, JSON_LEVELS_MAX)
        except ValueError:
            found = None
        message = found.get("message", text) if isinstance(found, dict) else text
        return " ".join(str(message).split())[:REASON_CHARS_MAX] or "it gives no reason"


NEXT = {
    401: "check the key or the identity, and this machine's clock",
    403: (
        "give the identity the role Cosmos DB Built-in Data Reader (a sink's: Contributor), and let this machine pass"
        " the account's firewall"
    ),
    404: "check `database` and `container`: they are never created here",
}


def refusal(answer: FeedAnswer, what: str) -> FeedError:
    """The error for an answer that is neither changes nor a 304. The caller has already handled a 410."""
    text = f"{what}: the account answers {answer.status}" + (f"/{answer.substatus}" if answer.substatus else "")
    if answer.status == THROTTLED:
        return FeedUnavailable(
            f"{text}, too many requests: give the container more throughput, or read it with fewer partitions at once",
            retry_after_s=answer.retry_after_s,
        )
    if answer.status == TIMEOUT:
        return FeedUnavailable(f"{what}: no answer in time ({answer.message})", retry_after_s=answer.retry_after_s)
    if answer.status == 400 and answer.substatus == OTHER_CONTAINER:
        return PositionLost(
            f"{text}: the container was deleted and created again, and continuations of the old one lead nowhere in it:"
            " give the pipeline another name, or reset its leases"
        )
    if answer.status in (GONE, 449) or answer.status >= 500:
        return FeedUnavailable(f"{text} ({answer.message})", retry_after_s=answer.retry_after_s)
    return FeedError(
        f"{text} ({answer.message}): {NEXT.get(answer.status, 'set the lease to a continuation that it takes')}"
    )
