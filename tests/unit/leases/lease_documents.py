"""Lease documents as .NET, Java and the V2 library leave them in a container, written by hand. For tests."""

from __future__ import annotations

import base64
import json
from typing import Any

HOST = "appacct.documents.azure.com"
PREFIX = f"orders{HOST}_q0oIAA==_q0oIALS6YvQ="
SYSTEM = {
    "_rid": "q0oIALS6YvQBAAAAAAAAAA==",
    "_self": "dbs/q0oIAA==/colls/q0oIALS6YvQ=/docs/q0oIALS6YvQBAAAAAAAAAA==/",
    "_etag": '"00000000-0000-0000-ac40-0d4d3ccb01da"',
    "_attachments": "attachments/",
    "_ts": 1772668516,
}
INFO = {"id": f"{PREFIX}.info", **SYSTEM}
LOCK = {"id": f"{PREFIX}.lock", "ttl": 30, **SYSTEM}


def dotnet(token: str = "0", continuation: str | None = '"1234"', **fields: Any) -> dict[str, Any]:
    """Version 0, or 1 where the token is a span of hashed keys."""
    low, dash, high = token.partition("-")
    return {
        "id": f"{PREFIX}..{token}",
        "version": 1 if dash else 0,
        "LeaseToken": token,
        "FeedRange": {"Range": {"min": low, "max": high} if dash else {"min": "", "max": "FF"}},
        "Owner": None,
        "ContinuationToken": continuation,
        "properties": {},
        "timestamp": "2026-03-04T23:55:16.5233511Z",
        "Mode": "Incremental Feed",
        **SYSTEM,
        **fields,
    }


def v2(token: str = "7", continuation: str = '"9"', **fields: Any) -> dict[str, Any]:
    return {
        "id": f"{PREFIX}..{token}",
        "PartitionId": token,
        "Owner": "old-host",
        "ContinuationToken": continuation,
        "SequenceNumber": 12,
        **SYSTEM,
        **fields,
    }


def java(token: str, parts: list[tuple[str, str, str | None]] | None, **fields: Any) -> dict[str, Any]:
    """Of a span of hashed keys."""
    low, _, high = token.partition("-")
    return {
        "id": f"{PREFIX}..{token}",
        "_etag": SYSTEM["_etag"],
        "LeaseToken": token,
        "ContinuationToken": None if parts is None else packed(parts),
        "timestamp": "2026-03-04T23:55:16.523Z[UTC]",
        "Owner": "java-host",
        "version": 1,
        "feedRange": {"Range": {"min": low, "max": high}},
        **fields,
    }


def packed(parts: list[tuple[str, str, str | None]], **fields: Any) -> str:
    """A continuation of Java's. parts: (min, max, ETag)."""
    tokens = [{"token": token, "range": {"min": low, "max": high}} for low, high, token in parts]
    whole = {"min": min((part[0] for part in parts), default=""), "max": max((part[1] for part in parts), default="FF")}
    state: dict[str, Any] = {"V": 1, "Rid": "q0oIALS6YvQ=", "Mode": "INCREMENTAL", "StartFrom": {"Type": "BEGINNING"}}
    if parts:
        state["Continuation"] = {"V": 1, "Rid": "q0oIALS6YvQ=", "Continuation": tokens, "Range": whole}
    return base64.b64encode(json.dumps({**state, **fields}).encode()).decode()
