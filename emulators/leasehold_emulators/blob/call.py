"""A request and its answer, independent of any HTTP library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from xml.sax.saxutils import escape

from leasehold_emulators.blob.refused import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """raw_path: as on the wire. headers: names in lower case. metadata: names as the client wrote them."""

    method: str
    raw_path: str
    account: str
    container: str
    blob: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    metadata: dict[str, str]
    body: bytes
    endpoint: str
    is_secure: bool = False

    @property
    def comp(self) -> str:
        return self.query.get("comp", "")

    @property
    def kind(self) -> str:
        """What the request does, and to what: `blob.put`, `blob.block`, `container.create`, `container.blobs`."""
        if self.blob:
            verb = KINDS.get((self.method, self.comp))
            return f"blob.{verb or f'{self.method.lower()}.{self.comp}'}"
        if self.container:
            verb = CONTAINER_KINDS.get((self.method, self.comp))
            return f"container.{verb or f'{self.method.lower()}.{self.comp}'}"
        return "account.containers" if self.comp == "list" else "account.read"

    def number(self, header: str) -> int | None:
        value = self.headers.get(header)
        if value is None or value == "":
            return None
        try:
            return int(value)
        except ValueError:
            raise Refused("InvalidHeaderValue", f"{header}: {value}") from None


KINDS = {
    ("PUT", ""): "put",
    ("PUT", "block"): "block",
    ("PUT", "blocklist"): "commit",
    ("GET", "blocklist"): "blocks",
    ("PUT", "appendblock"): "append",
    ("GET", ""): "get",
    ("HEAD", ""): "head",
    ("GET", "metadata"): "head",
    ("HEAD", "metadata"): "head",
    ("DELETE", ""): "delete",
    ("PUT", "metadata"): "metadata",
    ("PUT", "properties"): "properties",
    ("PUT", "lease"): "lease",
}
CONTAINER_KINDS = {
    ("PUT", ""): "create",
    ("GET", ""): "read",
    ("HEAD", ""): "read",
    ("GET", "metadata"): "read",
    ("HEAD", "metadata"): "read",
    ("GET", "acl"): "acl",
    ("HEAD", "acl"): "acl",
    ("DELETE", ""): "delete",
    ("PUT", "metadata"): "metadata",
    ("PUT", "lease"): "lease",
    ("GET", "list"): "blobs",
}
REQUESTS = (
    *("account.read", "account.containers"),
    *sorted({f"blob.{verb}" for verb in KINDS.values()} | {f"container.{verb}" for verb in CONTAINER_KINDS.values()}),
)
"""The kinds of requests for which a fault can be ordered."""


@dataclass(slots=True, kw_only=True)
class Reply:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


def refusal(refused: Refused) -> Reply:
    body = f"{XML}<Error><Code>{refused.code}</Code><Message>{escape(str(refused))}</Message></Error>"
    headers = {"x-ms-error-code": refused.code, "Content-Type": "application/xml", **refused.headers}
    return Reply(status=refused.status, headers=headers, body=b"" if refused.status == 304 else body.encode())


def date(time: float) -> str:
    return formatdate(time, usegmt=True)


XML = '<?xml version="1.0" encoding="utf-8"?>'
