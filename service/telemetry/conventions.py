"""Names and attributes of OpenTelemetry's semantic conventions, for spans and metrics. Pure.

Messaging, in development: https://opentelemetry.io/docs/specs/semconv/messaging/. Databases, stable:
https://opentelemetry.io/docs/specs/semconv/database/. The version, and which optional parts to follow, are decided in
docs/decisions/0027-telemetry-follows-the-conventions.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from leasehold.pipeline.endpoint import Endpoint

SCHEMA_URL = "https://opentelemetry.io/schemas/1.43.0"
"""The version that defines these names."""

Value = str | int | float | bool
Kind = Literal["internal", "client", "producer", "consumer"]
KINDS: Mapping[str, Kind] = {"receive": "client", "process": "consumer", "send": "producer", "settle": "client"}
"""The kind of a span, by its messaging.operation.type."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What a span or a metric is about. name: of the span."""

    name: str
    kind: Kind
    attributes: Mapping[str, Value]


def messaging(
    endpoint: Endpoint, name: str, type: str, *, pipeline: str | None = None, partition: str | None = None
) -> Operation:
    """An operation on messages. pipeline: of a consumer; its name is the group if the source has none."""
    group = None if pipeline is None else endpoint.group or pipeline
    return Operation(
        f"{name} {endpoint.name}",
        KINDS[type],
        _given(
            {
                "messaging.system": endpoint.system,
                "messaging.operation.name": name,
                "messaging.operation.type": type,
                "messaging.destination.name": endpoint.name,
                "messaging.destination.partition.id": partition,
                "messaging.consumer.group.name": group,
                **_server(endpoint),
            }
        ),
    )


def delivery(endpoint: Endpoint, partition: str | None = None) -> Operation:
    """The delivery of one batch's output to a sink."""
    if endpoint.kind == "messaging":
        return messaging(endpoint, "send", "send", partition=partition)
    if endpoint.kind == "database":
        attributes = {
            "db.system.name": endpoint.system,
            "db.operation.name": "COMMIT" if endpoint.system == "postgresql" else "write",
            "db.namespace": endpoint.namespace,
            "db.collection.name": endpoint.collection,
            **_server(endpoint),
        }
        return Operation(f"{attributes['db.operation.name']} {endpoint.name}", "client", _given(attributes))
    kind: Kind = "internal" if endpoint.server is None else "client"
    return Operation(f"deliver {endpoint.name}", kind, _given(_server(endpoint)))


def error_type(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _server(endpoint: Endpoint) -> dict[str, Value | None]:
    return {"server.address": endpoint.server, "server.port": endpoint.port if endpoint.server else None}


def _given(attributes: Mapping[str, Value | None]) -> dict[str, Value]:
    return {name: value for name, value in attributes.items() if value is not None}
