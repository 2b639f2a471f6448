"""What every error of the API has to be."""

from __future__ import annotations

import httpx


def problem(answer: httpx.Response, status: int) -> dict[str, object]:
    """The problem that the answer has to be."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, object] = answer.json()
    assert body["status"] == status
    assert body["type"] == "about:blank"
    assert body["title"]
    assert body["detail"]
    assert len(answer.content) < 2000
    return body
