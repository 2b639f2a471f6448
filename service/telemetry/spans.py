"""What becomes a span: acquisitions, renewals, requests and releases of leases, and batches with their stages; and where
spans go.

Attributes name lease, epoch and positions. Texts are cut, and secrets are masked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit, urlunsplit

from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.clock import Clock
from leases.errors import StoreError
from leases.lease import Lease, LeaseKey
from pipeline.pump.runner import DeliveredBatch
from pipeline.sink import CloseReason
from service.errors import StartFailed
from service.stats import Stats
from service.texts import redacted

if TYPE_CHECKING:
    from service.config.settings import TelemetrySettings

TEXT_MAX = 200
"""Characters of an attribute. Positions of files are long, and errors are for the log."""

Value = str | int | float | bool
About = Mapping[str, str | int | None]
"""Attributes of one operation, beside those of its lease."""
NOTHING: About = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A finished operation. took_s: its duration; ended_s_ago: before it was reported. error: why it failed, if it did.

    parts: what it consists of, in its own trace.
    """

    name: str
    took_s: float
    attributes: Mapping[str, Value]
    ended_s_ago: float = 0.0
    error: str | None = None
    parts: tuple[Span, ...] = ()


SpanHandle = object
"""The identity of a reported span, for spans that belong to it."""


class Traces(Protocol):
    """Where spans go."""

    @property
    def made(self) -> int:
        """How many so far, without those that the sampler left out."""
        ...

    @property
    def exported(self) -> int:
        """How many of those a collector has accepted."""
        ...

    def send(self, span: Span, *, within: SpanHandle | None = None, after: SpanHandle | None = None) -> SpanHandle:
        """Returns at once. within: the enclosing span. after: a span to refer to from a new trace."""
        ...

    async def close(self) -> None:
        """Waits a moment for what is under way."""
        ...


# Each operation is a trace of its own, so that none grows for as long as a lease is held. Those of a tenure refer to its
# `acquire`, and a checkpoint belongs to the trace of the newest batch that it covers.


@dataclass(slots=True)
class _Tenure:
    """acquired, batch: its first span, and that of its newest batch. wanted_at: since when another host requests it."""

    acquired: SpanHandle
    batch: SpanHandle | None = None
    wanted_at: float | None = None


class TracedStats(Stats):
    """What is kept for spans to come is bounded by the leases of the group."""

    def __init__(self, clock: Clock, traces: Traces, log: Log | None = None) -> None:
        super().__init__(clock, log)
        self._traces = traces
        self._tenures: dict[LeaseKey, _Tenure] = {}
        self._asked_at: dict[LeaseKey, float] = {}

    @property
    def spans_made(self) -> int:
        return self._traces.made

    @property
    def spans_exported(self) -> int:
        return self._traces.exported

    def record_lease_request(self, lease: Lease) -> None:
        super().record_lease_request(lease)
        self._asked_at[lease.key] = self.clock.monotonic()

    def record_acquisition(self, lease: Lease, *, before: Lease, took_s: float) -> None:
        super().record_acquisition(lease, before=before, took_s=took_s)
        self._tenures.pop(lease.key, None)
        asked_at, handoff = self._asked_at.pop(lease.key, None), None
        if asked_at is not None:
            handoff = self._send("handoff", lease, self.clock.monotonic() - asked_at, about={"side": "taker"})
        about = {"before": before.owner, "position": lease.continuation}
        acquired = self._send("acquire", lease, took_s, within=handoff, about=about)
        self._tenures[lease.key] = _Tenure(acquired)

    def record_renewal(self, lease: Lease, took_s: float, error: StoreError | None = None) -> None:
        super().record_renewal(lease, took_s, error)
        self._send("renew", lease, took_s, error=error)

    def record_handoff_request(self, lease: Lease) -> None:
        super().record_handoff_request(lease)
        tenure = self._tenures.get(lease.key)
        if tenure is not None and tenure.wanted_at is None:
            tenure.wanted_at = self.clock.monotonic()

    def record_release(self, lease: Lease, reason: CloseReason) -> None:
        super().record_release(lease, reason)
        tenure = self._tenures.get(lease.key)
        if tenure is None or tenure.wanted_at is None:
            self._send("release", lease, about={"reason": reason, "position": lease.continuation})
        else:
            took_s = self.clock.monotonic() - tenure.wanted_at
            about = {"side": "owner", "to": lease.handoff_to, "reason": reason}
            self._send("handoff", lease, took_s, about=about)
        self._tenures.pop(lease.key, None)

    def record_suspension(self, lease: Lease) -> None:
        super().record_suspension(lease)
        self._send("suspend", lease, error="the lease could not be renewed in time")

    def record_batch(self, lease: Lease, batch: DeliveredBatch) -> None:
        super().record_batch(lease, batch)
        about = {
            "from": batch.start,
            "to": batch.to,
            "events": batch.events,
            "dead_letters": batch.dead_letters,
        }
        stages = _stages_of(batch)
        handle = self._send("batch", lease, sum(stage.took_s for stage in stages), about=about, parts=stages)
        if (tenure := self._tenures.get(lease.key)) is not None:
            tenure.batch = handle

    def record_checkpoint(self, lease: Lease, took_s: float) -> None:
        super().record_checkpoint(lease, took_s)
        if (tenure := self._tenures.get(lease.key)) is not None:
            self._send("checkpoint", lease, took_s, within=tenure.batch, about={"to": lease.continuation})

    def record_work_failure(self, lease: Lease, position: str | None, error: Exception) -> None:
        super().record_work_failure(lease, position, error)
        self._send("batch", lease, about={"from": position}, error=error)

    def _send(
        self,
        name: str,
        lease: Lease,
        took_s: float = 0.0,
        *,
        about: About = NOTHING,
        within: SpanHandle | None = None,
        error: Exception | str | None = None,
        parts: tuple[Span, ...] = (),
    ) -> SpanHandle:
        """Report a span that ends now, and refers to the one of the lease's acquisition."""
        span = Span(name=name, took_s=took_s, attributes=_attributes(lease, about), error=_why(error), parts=parts)
        tenure = self._tenures.get(lease.key)
        return self._traces.send(span, within=within, after=None if tenure is None else tenure.acquired)


def _stages_of(batch: DeliveredBatch) -> tuple[Span, ...]:
    """One after the other, up to now."""
    stages = {
        "read": batch.waited_s,
        "transform": batch.transform_s,
        "queue": batch.queued_s,
        "deliver": batch.deliver_s,
    }
    left, spans = sum(stages.values()), []
    for name, took_s in stages.items():
        left -= took_s
        spans.append(Span(name=name, took_s=took_s, ended_s_ago=max(0.0, left), attributes={}))
    return tuple(spans)


def _attributes(lease: Lease, about: About) -> dict[str, Value]:
    fields: dict[str, str | int | None] = {
        "pipeline": lease.pipeline,
        "partition": lease.partition,
        "epoch": lease.epoch,
        "generation": lease.generation,
        **about,
    }
    return {f"leasehold.{name}": _cut(value) for name, value in fields.items() if value is not None}


def _cut(value: str | int) -> str | int:
    if isinstance(value, int):
        return value
    text = redacted(value)
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 3]}..."


def _why(error: Exception | str | None) -> str | None:
    return str(_cut(f"{type(error).__name__}: {error}")) if isinstance(error, Exception) else error


# Whether and where to send traces, according to the settings or else the variables of OpenTelemetry.
#
# An endpoint in the settings works or is an error. The variables may be set for all pods of a cluster: if they cannot be
# honoured, that is reported, and work continues without traces.


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
    if not is_configured(environ):
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


def is_configured(environ: Mapping[str, str]) -> bool:
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
    from service.config.section import install_command

    return StartFailed(
        f"traces are configured and need OpenTelemetry ({error.name} is not installed): {install_command('otel')}, or"
        " remove the setting (telemetry.traces)"
    )
