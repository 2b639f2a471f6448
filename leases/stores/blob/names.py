"""Ids of the store <-> names of blobs. Pure.

    orders/leases/7        orders/7                   a lease: one blob at {group}/{partition}
    orders/leases/a%2Fb    orders/a~2Fb               of a file: Azure's names are URLs, where a % would need an escape of its own
    orders/leases/v1.      orders/v1.!                no segment of a name may end with a dot
    orders/info            _leasehold/orders/info     everything else
    _hosts/host-a          _leasehold/_hosts/host-a

Ids hold neither `~` nor `!` (leases.store), so every name stands for one id. An id has at most 255 characters, of which each
becomes two at most: names stay far below the 1,024 that a blob's may have.
"""

from __future__ import annotations

import re

from leases.document import lease_prefix

OTHERS = "_leasehold/"
"""No pipeline's name begins with an underscore."""
_LEASE = re.compile(r"([^/_][^/]*)/leases/(.+)", re.DOTALL)
_FINAL_DOT = re.compile(r"\.(?=/|\Z)")


def blob_name(id: str) -> str:
    lease = _LEASE.fullmatch(id)
    return _escaped(f"{lease[1]}/{lease[2]}" if lease else OTHERS + id)


def id_of(name: str) -> str | None:
    """None of a blob that stands for nothing here."""
    plain = _unescaped(name)
    if plain.startswith(OTHERS):
        found = plain.removeprefix(OTHERS)
    else:
        group, _, rest = plain.partition("/")
        found = lease_prefix(group) + rest
    return found if blob_name(found) == name else None


def blob_prefixes(prefix: str) -> list[str]:
    """What the names of blobs begin with whose ids may begin with `prefix`; each blob is found once."""
    lease = _LEASE.fullmatch(prefix + "?")
    if lease:
        return [_begun(f"{lease[1]}/{lease[2][:-1]}")]
    if prefix.startswith(("_", "/")):
        return [_begun(OTHERS + prefix)]
    group = prefix.partition("/")[0]
    return [""] if not prefix else [_begun(group), _begun(OTHERS + prefix)]


def _escaped(text: str) -> str:
    return _FINAL_DOT.sub(".!", text).replace("%", "~")


def _begun(text: str) -> str:
    """Of a beginning: whether its last dot ends a segment is not known yet."""
    return _escaped(text + "?")[:-1]


def _unescaped(name: str) -> str:
    return name.replace(".!", ".").replace("~", "%")
