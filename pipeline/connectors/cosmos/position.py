"""Continuations are the server's ETags, `"<lsn>"` with their quotes; one also stands between any two LSNs of a page. Pure.

An LSN is a transaction: its documents are delivered together or not at all, so a position never lies inside one.
"""

from __future__ import annotations

import re

from pipeline.errors import PositionLost

_ETAG = re.compile(r'"([0-9]{1,18})"', re.ASCII)
BEGINNING = 0
"""Of None: no document has this LSN."""


def lsn_of(position: str | None) -> int:
    """The last LSN that was read. Raises PositionLost."""
    if position is None:
        return BEGINNING
    match = _ETAG.fullmatch(position)
    if match is None and position.startswith("ey"):  # base64 of a JSON object
        raise PositionLost(
            f"{position[:24] + '...'!r} is a continuation that Java's change feed processor packed: stop its hosts, then unpack"
            " all of them by `leasehold leases import FILE --pipeline NAME --from java`"
        )
    if match is None:
        raise PositionLost(
            f"{position[:100]!r} is no continuation of a Cosmos DB container's change feed, which looks like"
            """ '"1234"': set a new one for the lease"""
        )
    return int(match[1])


def position_behind(lsn: int) -> str:
    return f'"{lsn}"'


def furthest(a: str | None, b: str) -> str:
    """The later one: a replica that lags answers with an earlier position than it was asked for."""
    return a if a is not None and lsn_of(a) > lsn_of(b) else b


def session_lsn(token: str) -> int | None:
    """How far a range had come when it answered: `range:version#globalLSN#...`, or `range:LSN`. None where it cannot be read."""
    parts = token.rpartition(":")[2].split("#")
    text = parts[0] if len(parts) == 1 else parts[1]
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def estimated(session: int | None, first_unread: int) -> int:
    """Transactions behind, as the .NET estimator counts them; at least one, since one was seen."""
    return max(1, (first_unread if session is None else session) - first_unread + 1)
