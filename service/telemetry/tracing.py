"""Whether and where to send traces, according to the settings or else the variables of OpenTelemetry.

An endpoint in the settings works or is an error. The variables may be set for all pods of a cluster: if they cannot be
honoured, that is reported, and work continues without traces.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from structlog.typing import FilteringBoundLogger as Log

from service.config.section import install_command
from service.config.settings import TelemetrySettings
from service.errors import StartFailed
from service.telemetry.spans import Traces

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
EXPORTER, DISABLED = "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"
SPOKEN = "http/protobuf"
PATH = "/v1/traces"


def traces_of(settings: TelemetrySettings, environ: Mapping[str, str], *, host: str, log: Log) -> Traces | None:
    """None if no traces are configured. Raises StartFailed if the settings require them and they cannot be sent."""
    if environ.get(DISABLED, "").strip().lower() == "true":
        return None
    if settings.traces is not None:
        return _made(with_path(settings.traces), host, log)
    if not is_asked_for(environ):
        return None
    try:
        _check_protocol(environ)
        return _made(None, host, log)
    except StartFailed as error:
        log.warning("no traces", why=str(error))
        return None


def lacking(settings: TelemetrySettings) -> list[str]:
    """What the settings ask for and is not installed."""
    if settings.traces is None:
        return []
    try:
        import service.telemetry.otlp  # noqa: F401 - whether it can be
    except ModuleNotFoundError as error:
        return [str(_not_installed(error))]
    return []


def is_asked_for(environ: Mapping[str, str]) -> bool:
    """By the variables alone."""
    return environ.get(EXPORTER, "otlp") == "otlp" and any(environ.get(name) for name in ENDPOINTS)


def with_path(endpoint: str) -> str:
    """A collector's address alone stands for the path that OTLP has for traces."""
    parts = urlsplit(endpoint)
    return urlunsplit(parts._replace(path=PATH)) if parts.path in ("", "/") else endpoint


def _check_protocol(environ: Mapping[str, str]) -> None:
    for name in PROTOCOLS:
        if protocol := environ.get(name):
            if protocol != SPOKEN:
                raise StartFailed(
                    f"{name} is '{protocol}': set it to {SPOKEN}, and the endpoint to one that takes that"
                )
            return


def _made(endpoint: str | None, host: str, log: Log) -> Traces:
    """endpoint: None for that of the variables, which the exporter reads itself, as it does with headers and certificates."""
    try:
        from service.telemetry.otlp import OtlpTraces

        return OtlpTraces(endpoint, host=host, log=log)
    except ModuleNotFoundError as error:
        raise _not_installed(error) from None
    except ValueError as error:
        raise StartFailed(f"traces cannot be sent: one of the variables OTEL_* cannot be read ({error})") from None


def _not_installed(error: ModuleNotFoundError) -> StartFailed:
    return StartFailed(
        f"traces are configured and need OpenTelemetry ({error.name} is not installed): {install_command('otel')}, or"
        " remove the setting (telemetry.traces)"
    )
