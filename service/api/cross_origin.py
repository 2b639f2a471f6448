"""Which requests a browser may have been made to send by a page of somebody else's. Pure.

A page of another site can have a browser ask any address that it reaches, this machine's own included. What such a page may not
do is to lie about `Origin`, to read the answers of another origin, or to send JSON there without asking first; and a name that
the page's owner points at 127.0.0.1 (DNS rebinding) shows in `Host`. All of this is for a host without tokens: where there are
some, no browser has them for another page.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from service.config.types import is_loopback


def objection(headers: Mapping[bytes, bytes]) -> str | None:
    """Why a request without a token is not let in; None where it is."""
    host = headers.get(b"host", b"").decode("latin-1")
    if not _is_here(host):
        return "`Host` is no name of this machine: ask localhost or 127.0.0.1, or set api.readers and send a token"
    origin = headers.get(b"origin")
    if origin is not None and _place(origin.decode("latin-1")) != host.lower():
        return "a page of another origin may not ask: open the dashboard of this host, or leave `Origin` out"
    return None


def _is_here(host: str) -> bool:
    """localhost, or a loopback address; with a port or without one."""
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return name is not None and (is_loopback(name) or name.endswith(".localhost"))


def _place(origin: str) -> str | None:
    """`null`, a sandboxed page's, is no place."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
