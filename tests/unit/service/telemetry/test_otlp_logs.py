"""The log on the wire, as a collector sees it."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import structlog
from lab.servers.otlp import Collector, attributes
from opentelemetry.proto.logs.v1.logs_pb2 import SeverityNumber
from patience import PATIENCE_S, until_async

from leasehold.service.config.settings import LogSettings
from leasehold.service.config.telemetry import TelemetrySettings
from leasehold.service.telemetry import logs
from leasehold.service.telemetry.otlp import OtlpLogs
from leasehold.service.telemetry.signals import logs_of

QUEUE = 64
Open = Callable[..., OtlpLogs]


@pytest.fixture(autouse=True)
def configured(tmp_path) -> Iterator[None]:
    """As `leasehold run` has it, with a log file that the test does not read."""
    root, before = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in (*logs.PACKAGES, *logs.SDKS)}
    logs.configure(LogSettings(file=tmp_path / "log", level="debug"), "host-a")
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, each in levels.items():
        logging.getLogger(name).setLevel(each)
    logging.captureWarnings(False)
    structlog.configure(**before)


@pytest.fixture
async def opened(environ, collector: Collector) -> AsyncIterator[Open]:
    made: list[OtlpLogs] = []

    def start(level: str = "info") -> OtlpLogs:
        settings = LogSettings.model_validate({"level": level})
        found = logs_of(TelemetrySettings(logs=collector.url), settings, {}, host="host-a", log=logs.logger())
        assert isinstance(found, OtlpLogs)
        found.start()
        made.append(found)
        return found

    yield start
    for each in made:
        await each.close()


async def test_a_line_arrives_with_its_fields_and_without_secrets(opened: Open, collector: Collector) -> None:
    exporter, began_ns = opened(), time.time_ns()
    secret = "postgresql://ada:hunter2@db/bank"
    logs.logger().warning("lease acquired", epoch=4, partition="7", where=secret, password="hunter2", pair=["a", 1])
    await exporter.close()
    (record,) = collector.logs
    assert record.body.string_value == "lease acquired"
    assert (record.severity_number, record.severity_text) == (SeverityNumber.SEVERITY_NUMBER_WARN, "WARNING")
    found = attributes(record)
    assert (found["epoch"], found["partition"], found["password"]) == (4, "7", "***")
    assert found["where"] == "postgresql://ada:***@db/bank"
    assert [each.string_value or each.int_value for each in found["pair"].values] == ["a", 1]
    assert "hunter2" not in str(collector.requests)
    assert began_ns - 1_000_000 <= record.time_unix_nano <= time.time_ns()
    assert (record.trace_id, record.span_id) == (b"", b"")
    assert collector.resource["service.instance.id"] == "host-a"


async def test_a_line_of_a_batch_belongs_to_its_span(opened: Open, collector: Collector) -> None:
    exporter = opened()
    logs.logger().warning("partition failed, retrying", trace_id=f"{7:032x}", span_id=f"{9:016x}")
    await exporter.close()
    (record,) = collector.logs
    assert (record.trace_id.hex(), record.span_id.hex()) == (f"{7:032x}", f"{9:016x}")
    assert attributes(record) == {}


async def test_an_exception_arrives_with_its_traceback(opened: Open, collector: Collector) -> None:
    exporter = opened()
    try:
        raise ValueError("hunter2 is no number")
    except ValueError:
        logs.logger().error("failed", exc_info=True)
    await exporter.close()
    (record,) = collector.logs
    assert "ValueError: hunter2 is no number" in attributes(record)["exception.stacktrace"]


async def test_levels_are_those_of_the_log(opened: Open, collector: Collector) -> None:
    exporter = opened("info")
    logs.logger().debug("no")
    logging.getLogger("leasehold.pipeline.async_sink").info("ours")
    logging.getLogger("theirs").info("no")
    logging.getLogger("theirs").warning("theirs")
    await exporter.close()
    assert [record.body.string_value for record in collector.logs] == ["ours", "theirs"]
    assert attributes(collector.logs[1])["logger"] == "theirs"


async def test_a_failing_export_does_not_feed_itself(opened: Open, collector: Collector, tmp_path) -> None:
    collector.status = 400
    exporter = opened("debug")
    logs.logger().info("first")
    await until_async(lambda: "cannot export logs" in (tmp_path / "log").read_text())
    refused = collector.refused
    collector.status = 200
    logs.logger().info("second")
    await until_async(lambda: "exporting logs again" in (tmp_path / "log").read_text())
    await exporter.close()
    assert refused == 1, "nothing but the first line was sent"
    assert [record.body.string_value for record in collector.logs] == ["second"]


async def test_a_collector_that_hangs_holds_up_nothing(environ, opened: Open, collector: Collector, tmp_path) -> None:
    """An exporter that had given up would say so."""
    environ.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", str(PATIENCE_S))
    collector.answers.clear()
    exporter = opened()
    for number in range(10 * QUEUE):
        logs.logger().info("line", number=number)
    (processor,) = exporter._provider._multi_log_record_processor._log_record_processors
    assert len(processor._batch_processor._queue) <= QUEUE
    await exporter.close()
    assert "cannot export logs" not in (tmp_path / "log").read_text()


async def test_after_the_end_nothing_is_sent(opened: Open, collector: Collector) -> None:
    exporter = opened()
    before = logging.getLogger().handlers[:]
    await exporter.close()
    logs.logger().info("late")
    assert collector.logs == []
    assert len(logging.getLogger().handlers) == len(before) - 1
