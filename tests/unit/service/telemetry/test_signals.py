"""Whether and where signals go, by settings and variables."""

from __future__ import annotations

import sys

import pytest
import structlog
from structlog.testing import capture_logs

from leasehold.service.config.settings import LogSettings
from leasehold.service.config.telemetry import TelemetrySettings
from leasehold.service.errors import StartFailed
from leasehold.service.telemetry.signals import (
    LOGS,
    METRICS,
    SIGNALS,
    TRACES,
    Signal,
    lacking,
    logs_of,
    metrics_of,
    propagates,
    traces_of,
    with_path,
)

ADDRESS = "http://collector:4318"
NAMES = [signal.name for signal in SIGNALS]


def asked(environ: dict[str, str], settings: TelemetrySettings | None = None, name: str = "traces") -> object:
    settings, log = settings or TelemetrySettings(), structlog.get_logger()
    if name == "traces":
        return traces_of(settings, environ, host="host-a", log=log)
    if name == "logs":
        return logs_of(settings, LogSettings(), environ, host="host-a", log=log)

    async def read() -> list[object]:
        return []

    return metrics_of(settings, environ, host="host-a", log=log, read=read)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_SERVICE_NAME": "bank"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ADDRESS, "OTEL_SDK_DISABLED": "TRUE"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ADDRESS, "OTEL_{}_EXPORTER": "none"},
    ],
)
def test_if_nothing_asks_nothing_is_sent(environ: dict[str, str], name: str) -> None:
    with capture_logs() as said:
        assert asked({key.format(name.upper()): value for key, value in environ.items()}, name=name) is None
    assert said == []


def test_prometheus_as_the_exporter_of_metrics_is_what_there_is_anyway() -> None:
    with capture_logs() as said:
        assert (
            asked({"OTEL_EXPORTER_OTLP_ENDPOINT": ADDRESS, "OTEL_METRICS_EXPORTER": "prometheus"}, name="metrics")
            is None
        )
    assert said == []


@pytest.mark.parametrize("name", NAMES)
def test_an_exporter_that_we_do_not_have_is_reported(name: str) -> None:
    with capture_logs() as said:
        assert asked({f"OTEL_{name.upper()}_EXPORTER": "zipkin"}, name=name) is None
    (line,) = said
    assert (line["event"], line["log_level"]) == (f"no {name}", "warning")
    assert line["why"] == f"OTEL_{name.upper()}_EXPORTER is 'zipkin': set it to otlp, or to none"


@pytest.mark.parametrize("name", NAMES)
def test_a_protocol_that_we_do_not_speak_is_reported_and_work_continues(name: str) -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with capture_logs() as said:
        assert asked(environ, name=name) is None
    (line,) = said
    assert line["why"].startswith("OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc': set it to http/protobuf")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the extra."""
    monkeypatch.delitem(sys.modules, "leasehold.service.telemetry.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("name", NAMES)
def test_without_the_extra_a_setting_is_an_error_with_a_remedy(name: str) -> None:
    settings = TelemetrySettings.model_validate({name: ADDRESS})
    with pytest.raises(StartFailed, match="pip install 'opentelemetry-exporter-otlp-proto-http<2,>=") as error:
        asked({}, settings, name)
    assert lacking(settings) == [str(error.value)]
    assert str(error.value).endswith(f"or remove the setting (telemetry.{name})")
    assert lacking(TelemetrySettings()) == []


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("name", NAMES)
def test_without_the_extra_variables_are_reported_and_work_continues(name: str) -> None:
    with capture_logs() as said:
        assert asked({"OTEL_EXPORTER_OTLP_ENDPOINT": ADDRESS}, name=name) is None
    (line,) = said
    assert "pip install 'opentelemetry-exporter-otlp-proto-http<2,>=" in line["why"]


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("traces", "OTEL_BSP_MAX_QUEUE_SIZE"),
        ("metrics", "OTEL_METRIC_EXPORT_INTERVAL"),
        ("logs", "OTEL_BLRP_MAX_QUEUE_SIZE"),
    ],
)
def test_a_variable_that_makes_no_sense_is_an_error_with_a_setting_and_a_warning_without(
    name: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "-1")
    with pytest.raises(StartFailed, match=f"{name} cannot be sent: one of the variables"):
        asked({}, TelemetrySettings.model_validate({name: ADDRESS}), name)
    with capture_logs() as said:
        assert asked({"OTEL_EXPORTER_OTLP_ENDPOINT": ADDRESS}, name=name) is None
    assert [line["event"] for line in said] == [f"no {name}"]


@pytest.mark.parametrize(
    ("signal", "given", "full"),
    [
        (TRACES, ADDRESS, f"{ADDRESS}/v1/traces"),
        (METRICS, f"{ADDRESS}/", f"{ADDRESS}/v1/metrics"),
        (LOGS, ADDRESS, f"{ADDRESS}/v1/logs"),
        (TRACES, "https://example.com/otlp/v1/traces", "https://example.com/otlp/v1/traces"),
    ],
)
def test_a_collector_s_address_alone_stands_for_otlp_s_path(signal: Signal, given: str, full: str) -> None:
    assert with_path(signal, given) == full


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "value", ["collector:4318", "ftp://x", "http://", "http://a:b@x", "http://x?key=1", "http://x:0"]
)
def test_an_endpoint_that_is_none_or_holds_a_secret_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="must be an address like http://collector:4318"):
        TelemetrySettings.model_validate({name: value})


@pytest.mark.parametrize(
    ("value", "is_on"),
    [("", True), ("tracecontext,baggage", True), (" Tracecontext ", True), ("none", False), ("b3", False)],
)
def test_contexts_are_propagated_unless_the_propagators_lack_them(value: str, is_on: bool) -> None:
    assert propagates({"OTEL_PROPAGATORS": value}) is is_on
    assert propagates({}) is True


def test_a_temporality_that_is_not_honoured_is_reported() -> None:
    environ = {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta"}
    with capture_logs() as said:
        assert asked(environ, TelemetrySettings(metrics=ADDRESS), "metrics") is not None
    assert [line["event"] for line in said] == ["metrics are cumulative"]
