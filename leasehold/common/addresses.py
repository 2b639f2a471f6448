"""Addresses: whether a host name is worth waiting for, and whether a URL is valid. No client is needed.

If no name server answers, that is an outage, and not a wrong name.
"""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

_NO_SUCH_NAME = tuple(getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA") if hasattr(socket, name))


def is_nowhere_at_once(host: str) -> bool:
    """Whether the resolver answers that this host does not exist. Blocks. host: a name or an IP address, without a port."""
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        return is_unknown_name(error)
    except UnicodeError:  # a name that DNS cannot carry
        return True
    return False


def is_unknown_name(error: BaseException) -> bool:
    """Whether a name server has answered that there is no such name. Pure."""
    return isinstance(error, socket.gaierror) and error.errno in _NO_SUCH_NAME


def checked_url(url: str) -> str:
    """The URL of an HTTP endpoint, unchanged. Raises ValueError, whose text omits the URL: it may hold a secret. Pure."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_one = False
        parts = urlsplit("")
    if not is_one or parts.username is not None or parts.password is not None or parts.fragment:
        raise ValueError("must be an address like https://example.com/events: put credentials in `headers`")
    return url
