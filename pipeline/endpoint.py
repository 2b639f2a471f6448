"""The address of a feed's source or a sink's destination, for telemetry. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A feed's source or a sink's destination, in the terms of telemetry. No field has a secret.

    - `kind`: whether its events are messages, its output a database's rows, or neither.
    - `system`: like `eventhubs` or `postgresql`. `name`: the hub, log, table or database.
    - `group`: the consumer group, if the source has one. `namespace`: the database. `collection`: the table.
    """

    kind: Literal["messaging", "database", "other"] = "messaging"
    system: str
    name: str
    server: str | None = None
    port: int | None = None
    group: str | None = None
    namespace: str | None = None
    collection: str | None = None


def endpoint_of(identity: str, kind: Literal["messaging", "other"]) -> Endpoint:
    """The endpoint that the identity of a feed or a sink names, like `log:/var/bank`."""
    system, colon, name = identity.partition(":")
    return Endpoint(kind=kind, system=system, name=name) if colon else Endpoint(kind=kind, system="custom", name=system)
