"""Parsing of the addresses in an Event Hubs namespace to which a link may be attached."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

CBS, MANAGEMENT = "$cbs", "$management"
RECEIVER = re.compile(r"(?P<hub>.+?)/ConsumerGroups/(?P<group>[^/]+)/Partitions/(?P<partition>[^/]+)", re.IGNORECASE)
SENDER = re.compile(r"(?P<hub>.+?)(?:/Partitions/(?P<partition>[^/]+))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """group: of a receiver. partition: None if the service chooses one. node: `$cbs`, or `$management`, with or without a hub."""

    hub: str = ""
    group: str | None = None
    partition: str | None = None
    node: str | None = None


def path_of(address: str) -> str:
    """The address without its scheme and host, if it has them."""
    path = urlsplit(address).path if "://" in address else address
    return path.strip("/")


def address(text: str, *, is_receiver: bool) -> Address | None:
    """The parsed address; None if it is not one."""
    path = path_of(text)
    if path in (CBS, MANAGEMENT):
        return Address(node=path)
    if path.endswith("/" + MANAGEMENT):
        return Address(node=MANAGEMENT, hub=path.removesuffix("/" + MANAGEMENT))
    found = (RECEIVER if is_receiver else SENDER).fullmatch(path)
    return Address(**found.groupdict()) if found else None
