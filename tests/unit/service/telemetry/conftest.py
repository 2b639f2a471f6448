"""A collector, and the SDK's variables for tests: it sends soon, and little waits."""

from collections.abc import Iterator

import pytest
from lab.servers.otlp import Collector, serving


@pytest.fixture
def collector() -> Iterator[Collector]:
    with serving() as found:
        yield found


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for of in ("OTEL_BSP", "OTEL_BLRP"):
        monkeypatch.setenv(f"{of}_SCHEDULE_DELAY", "20")
        monkeypatch.setenv(f"{of}_MAX_QUEUE_SIZE", "64")
        monkeypatch.setenv(f"{of}_MAX_EXPORT_BATCH_SIZE", "16")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "10")
    return monkeypatch
