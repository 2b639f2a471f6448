"""Addresses of HTTP endpoints, checked without a client. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit


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
