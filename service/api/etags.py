"""A lease's ETag as HTTP has it: the document's, quoted. Its expiry shows in the tag, since it changes the answer alone. Pure."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote

from service.group.status import LeaseStatus

_EXPIRED = ";expired"
ETAG_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {
        "headers": {
            "ETag": {"description": "The lease's, for `If-None-Match` and `If-Match`.", "schema": {"type": "string"}}
        }
    }
}
"""The description of the header for OpenAPI."""


def etag_of(status: LeaseStatus) -> str:
    return tag_of(status.etag, _EXPIRED if status.state == "expired" else "")


def tag_of(etag: str, more: str = "") -> str:
    return f'"{quote(etag, safe="")}{more}"'


def is_known(if_none_match: str, etag: str) -> bool:
    """Whether the client has it already; as the standard has it, a weak tag is as good."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or etag in tags


def meant_by(if_match: str) -> list[str]:
    """The ETags of the documents that a client replaces. The owner's expiry does not matter; weak tags do not count."""
    tags = (tag.strip() for tag in if_match.split(","))
    return [unquote(tag[1:-1].removesuffix(_EXPIRED)) for tag in tags if len(tag) > 1 and tag[0] == tag[-1] == '"']
