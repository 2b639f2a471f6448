"""The addresses of OpenTelemetry's collectors."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from leasehold.service.config.section import Section
from leasehold.service.config.types import Text


def _endpoint(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one or set("@?#") & set(value):
        raise ValueError(
            "must be an address like http://collector:4318, without user and query: put credentials in the"
            " variable OTEL_EXPORTER_OTLP_HEADERS"
        )
    return value


_Endpoint = Annotated[Text, AfterValidator(_endpoint)]


class TelemetrySettings(Section):
    """The collector of traces, metrics and logs, for OpenTelemetry."""

    traces: _Endpoint | None = Field(
        default=None,
        description="Where to send traces: a collector of OTLP over HTTP, like http://collector:4318. By default from the"
        " variables OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT; without them nowhere.",
    )
    metrics: _Endpoint | None = Field(
        default=None,
        description="Where to send metrics, as with `traces`. By default from the variables OTEL_EXPORTER_OTLP_ENDPOINT or"
        " OTEL_EXPORTER_OTLP_METRICS_ENDPOINT; without them nowhere. `/metrics` is served in any case.",
    )
    logs: _Endpoint | None = Field(
        default=None,
        description="Where to send the log, as with `traces`, in addition to where `log` writes it. By default from the variables"
        " OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_LOGS_ENDPOINT; without them nowhere.",
    )
