"""A request and its answer, independent of any HTTP library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from leasehold_emulators.cosmos.refused import CODES, Refused, bad

PAGE, PAGE_MAX = 100, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """path: its parts, unquoted. headers: names in lower case. endpoint: as the client addressed it.

    lag: by how many LSNs the answering replica lags. again: whether it repeats its last transaction (200) instead of a 304.
    """

    method: str
    path: tuple[str, ...]
    headers: Mapping[str, str]
    body: bytes
    endpoint: str
    lag: int = 0
    again: bool = False

    def header(self, name: str) -> str | None:
        return self.headers.get(name)

    def is_set(self, name: str) -> bool:
        return (self.headers.get(name) or "").lower() == "true"

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise bad("The body is not JSON.") from None

    @property
    def limit(self) -> int:
        """The most results in a page."""
        asked = int(self.header("x-ms-max-item-count") or PAGE)
        return min(asked, PAGE_MAX) if asked > 0 else PAGE_MAX

    @property
    def kind(self) -> str:
        """What the request does, and to what: `document.replace`, `documents.query`, `feed.latest`, `ranges.list`."""
        if not self.path:
            return "account.read"
        is_list = len(self.path) % 2 == 1
        one, many = NAMES.get(self.path[-1 if is_list else -2], ("resource", "resources"))
        if not is_list:
            return f"{one}.{VERBS.get(self.method, self.method.lower())}"
        if self.method == "GET":
            return self._feed_kind or f"{many}.list"
        if self.is_set("x-ms-cosmos-is-query-plan-request"):
            return f"{many}.plan"
        if self.is_set("x-ms-documentdb-isquery") or "query+json" in (self.header("content-type") or ""):
            return f"{many}.query"
        if self.is_set("x-ms-cosmos-is-batch-request"):
            return f"{many}.batch"
        return f"{one}.upsert" if self.is_set("x-ms-documentdb-is-upsert") else f"{one}.create"

    @property
    def _feed_kind(self) -> str | None:
        mode = (self.header("a-im") or "").lower()
        if not mode or self.path[-1] != "docs":
            return None
        return "feed.full" if mode == "full-fidelity feed" else "feed.latest"


NAMES = {
    "dbs": ("database", "databases"),
    "colls": ("container", "containers"),
    "docs": ("document", "documents"),
    "pkranges": ("range", "ranges"),
    "offers": ("offer", "offers"),
}
VERBS = {"GET": "read", "PUT": "replace", "DELETE": "delete", "PATCH": "patch", "POST": "post"}
REQUESTS = (
    *("account.read", "feed.latest", "feed.full"),
    *(f"{one}.{verb}" for one, _ in NAMES.values() for verb in (*VERBS.values(), "create", "upsert")),
    *(f"{many}.{verb}" for _, many in NAMES.values() for verb in ("list", "query", "plan", "batch")),
)
"""The kinds of requests for which a fault can be ordered."""


@dataclass(slots=True, kw_only=True)
class Reply:
    """documents: how many were read or written. range_id: of the range that answered, if there was only one."""

    status: int = 200
    content: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    documents: int = 0
    range_id: str | None = None

    @property
    def body(self) -> bytes:
        return b"" if self.content is None else json.dumps(self.content, separators=(",", ":")).encode()


def refusal(refused: Refused) -> Reply:
    code = CODES.get(refused.status, "Error")
    headers = dict(refused.headers)
    if refused.substatus:
        headers["x-ms-substatus"] = str(refused.substatus)
    return Reply(status=refused.status, content={"code": code, "message": refused.message}, headers=headers)


def listed(name: str, rid: str, items: list[Any]) -> dict[str, Any]:
    return {"_rid": rid, name: items, "_count": len(items)}
