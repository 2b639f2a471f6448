"""Whether and where to send traces, metrics and logs, according to the settings or else the variables of OpenTelemetry.

An endpoint in the settings works or is an error. The variables may be set for all pods of a cluster: if they cannot be
honoured, that is reported, and work continues without the signal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import urlsplit, urlunsplit

from structlog.typing import FilteringBoundLogger as Log

from leasehold.service.errors import StartFailed
from leasehold.service.telemetry.spans import Traces

if TYPE_CHECKING:
    from leasehold.service.config.settings import LogSettings
    from leasehold.service.config.telemetry import TelemetrySettings
    from leasehold.service.telemetry.figures import Figure

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Signal:
    """name: of the setting, of the path, and in the variables."""

    name: str

    def variable(self, kind: str) -> str:
        return f"OTEL_EXPORTER_OTLP_{self.name.upper()}_{kind}"

    @property
    def exporter(self) -> str:
        return f"OTEL_{self.name.upper()}_EXPORTER"

    @property
    def path(self) -> str:
        return f"/v1/{self.name}"


TRACES, METRICS, LOGS = Signal("traces"), Signal("metrics"), Signal("logs")
SIGNALS = (TRACES, METRICS, LOGS)
ENDPOINT, PROTOCOL = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL"
DISABLED, PROPAGATORS = "OTEL_SDK_DISABLED", "OTEL_PROPAGATORS"
TEMPORALITY = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
SPOKEN = "http/protobuf"
NOT_OURS = {"traces": ("none",), "metrics": ("none", "prometheus"), "logs": ("none",)}
"""Exporters that need nothing from this module: /metrics exists in any case."""


class Exporter(Protocol):
    """Sends something while the host works, from the start to the end of the work."""

    def start(self) -> None:
        """Called on the event loop, before the work begins."""
        ...

    async def close(self) -> None:
        """Waits a moment for what is under way."""
        ...


def traces_of(settings: TelemetrySettings, environ: Mapping[str, str], *, host: str, log: Log) -> Traces | None:
    """None if no traces are configured. Raises StartFailed if the settings require them and they cannot be sent."""

    def make(endpoint: str | None) -> Traces:
        from leasehold.service.telemetry.otlp import OtlpTraces

        return OtlpTraces(endpoint, host=host, log=log, propagates=propagates(environ))

    return _opened(TRACES, settings.traces, environ, log, make)


def metrics_of(
    settings: TelemetrySettings,
    environ: Mapping[str, str],
    *,
    host: str,
    log: Log,
    read: Callable[[], Awaitable[list[Figure]]],
) -> Exporter | None:
    """read: what to send now. None and StartFailed as for `traces_of`."""

    def make(endpoint: str | None) -> Exporter:
        from leasehold.service.telemetry.otlp import OtlpMetrics

        if environ.get(TEMPORALITY, "cumulative").strip().lower() not in ("", "cumulative"):
            log.warning("metrics are cumulative", why=f"{TEMPORALITY} is not honoured: let the collector convert them")
        return OtlpMetrics(endpoint, host=host, log=log, read=read)

    return _opened(METRICS, settings.metrics, environ, log, make)


def logs_of(
    settings: TelemetrySettings, log_settings: LogSettings, environ: Mapping[str, str], *, host: str, log: Log
) -> Exporter | None:
    """The log of the whole process, at its level. None and StartFailed as for `traces_of`."""

    def make(endpoint: str | None) -> Exporter:
        from leasehold.service.telemetry.otlp import OtlpLogs

        return OtlpLogs(endpoint, host=host, log=log, level=log_settings.level)

    return _opened(LOGS, settings.logs, environ, log, make)


def lacking(settings: TelemetrySettings) -> list[str]:
    """An error message for each signal that the settings require, if its packages are not installed."""
    wanted = [signal for signal in SIGNALS if getattr(settings, signal.name) is not None]
    if not wanted:
        return []
    try:
        import leasehold.service.telemetry.otlp  # noqa: F401 - only to see whether it can be imported
    except ModuleNotFoundError as error:
        return [str(_not_installed(signal, error)) for signal in wanted]
    return []


def is_configured(signal: Signal, environ: Mapping[str, str]) -> bool:
    """Whether the variables alone configure the signal: by an endpoint, or by the name of an exporter."""
    exporter = environ.get(signal.exporter, "").strip().lower()
    if exporter:
        return exporter not in NOT_OURS[signal.name]
    return any(environ.get(name) for name in (signal.variable("ENDPOINT"), ENDPOINT))


def propagates(environ: Mapping[str, str]) -> bool:
    """Whether W3C Trace Context is among the propagators, as it is by default."""
    names = environ.get(PROPAGATORS, "").strip() or "tracecontext"
    return "tracecontext" in [name.strip().lower() for name in names.split(",")]


def with_path(signal: Signal, endpoint: str) -> str:
    """A collector's address alone gets the path that OTLP has for the signal."""
    parts = urlsplit(endpoint)
    return urlunsplit(parts._replace(path=signal.path)) if parts.path in ("", "/") else endpoint


def _opened(
    signal: Signal, endpoint: str | None, environ: Mapping[str, str], log: Log, make: Callable[[str | None], T]
) -> T | None:
    """make: called with None for the endpoint of the variables, which the exporter reads itself, like headers and
    certificates."""
    if environ.get(DISABLED, "").strip().lower() == "true":
        return None
    if endpoint is not None:
        return _made(signal, with_path(signal, endpoint), make)
    if not is_configured(signal, environ):
        return None
    try:
        _check_exporter(signal, environ)
        _check_protocol(signal, environ)
        return _made(signal, None, make)
    except StartFailed as error:
        log.warning(f"no {signal.name}", why=str(error))
        return None


def _check_exporter(signal: Signal, environ: Mapping[str, str]) -> None:
    exporter = environ.get(signal.exporter, "").strip().lower()
    if exporter not in ("", "otlp"):
        raise StartFailed(f"{signal.exporter} is '{exporter}': set it to otlp, or to none")


def _check_protocol(signal: Signal, environ: Mapping[str, str]) -> None:
    for name in (signal.variable("PROTOCOL"), PROTOCOL):
        if protocol := environ.get(name):
            if protocol != SPOKEN:
                raise StartFailed(
                    f"{name} is '{protocol}': set it to {SPOKEN}, and the endpoint to one that accepts it"
                )
            return


def _made(signal: Signal, endpoint: str | None, make: Callable[[str | None], T]) -> T:
    try:
        return make(endpoint)
    except ModuleNotFoundError as error:
        raise _not_installed(signal, error) from None
    except ValueError as error:
        raise StartFailed(
            f"{signal.name} cannot be sent: one of the variables OTEL_* cannot be read ({error})"
        ) from None


def _not_installed(signal: Signal, error: ModuleNotFoundError) -> StartFailed:
    from leasehold.service.config.messages import install_command

    return StartFailed(
        f"{signal.name} are configured and need OpenTelemetry ({error.name} is not installed): {install_command('otel')}, or"
        f" remove the setting (telemetry.{signal.name})"
    )
