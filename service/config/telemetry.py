"""Where traces go."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from service.config.section import Section
from service.config.types import Text


def _endpoint(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one or set("@?#") & set(value):
        raise ValueError(
            "must be an address like http://collector:4318, without user and query: what says who we are belongs into the"
            " variable OTEL_EXPORTER_OTLP_HEADERS"
        )
    return value


class TelemetrySettings(Section):
    traces: Annotated[Text, AfterValidator(_endpoint)] | None = Field(
        default=None,
        description="Where to send traces: a collector of OTLP over HTTP, like http://collector:4318. By default where the"
        " variables OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT say; without them nowhere.",
    )
