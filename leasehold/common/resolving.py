"""Names of hosts: whether waiting for one is useless. A name server that is away is an outage, and not the name's fault."""

from __future__ import annotations

import socket

_NO_SUCH_NAME = tuple(getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA") if hasattr(socket, name))


def is_nowhere_at_once(host: str) -> bool:
    """Ask the resolver, in the caller's thread. host: a name or a number, without a port."""
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
