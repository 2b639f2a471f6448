"""What a line of the log says, in both forms."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

import pytest
import structlog

from leasehold.service.config.settings import LogSettings
from leasehold.service.errors import ConfigurationError
from leasehold.service.telemetry import logs

Lines = Callable[[], list[Any]]


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    yield
    root = logging.getLogger()
    for handler in [each for each in root.handlers if each.name == "leasehold"]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(logging.WARNING)
    logging.getLogger("azure").setLevel(logging.NOTSET)
    logging.captureWarnings(False)
    structlog.reset_defaults()


def configured(tmp_path: Path, **settings: str) -> Lines:
    file = tmp_path / "host.log"
    logs.configure(LogSettings(file=file, **settings), "host-a")  # type: ignore[arg-type]

    def lines() -> list[Any]:
        text = file.read_text().splitlines()
        return [json.loads(line) for line in text] if settings.get("format") == "json" else text

    return lines


def test_a_json_line_is_one_object_with_time_level_host_event_and_fields(tmp_path: Path) -> None:
    lines = configured(tmp_path, format="json")
    logs.logger().bind(pipeline="bank").info("lease acquired", epoch=4, owner=None)
    (line,) = lines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "info",
        "host": "host-a",
        "event": "lease acquired",
        "pipeline": "bank",
        "epoch": 4,
        "owner": None,
    }


def test_a_text_line_says_the_same_to_people(tmp_path: Path) -> None:
    lines = configured(tmp_path)
    logs.logger().warning("lease lost", owner="host-b", why="it was stolen", epoch=4, of=["bank", "a b"], to=["c"])
    (line,) = lines()
    said = 'owner=host-b why="it was stolen" epoch=4 of="bank, a b" to=c'
    assert re.fullmatch(rf"\S+Z warning host-a lease lost {said}", line)


@pytest.mark.parametrize("format", ["text", "json"])
def test_nothing_in_a_value_begins_a_line_or_moves_a_cursor(tmp_path: Path, format: str) -> None:
    lines = configured(tmp_path, format=format)
    evil = "x\n2026-01-01T00:00:00.000Z error host-b forged\r\x1b[2J\u2028\udc80"
    logs.logger().info(evil, value=evil, nested={"a": [evil]}, error=ValueError(evil))
    logging.getLogger("other").warning(evil)
    assert len(lines()) == 2
    assert "\x1b" not in (tmp_path / "host.log").read_text()


@pytest.mark.parametrize("format", ["text", "json"])
def test_an_exception_brings_its_traceback_and_every_line_names_the_host(tmp_path: Path, format: str) -> None:
    lines = configured(tmp_path, format=format)
    try:
        raise ValueError("no such account")
    except ValueError:
        logs.logger().error("batch failed", exc_info=True)
    found = lines()
    if format == "json":
        assert "ValueError: no such account" in found[0]["exception"]
    else:
        assert found[-1].endswith("error   host-a | ValueError: no such account")
        assert all(" host-a " in line for line in found)


def test_passwords_are_masked_wherever_they_stand(tmp_path: Path) -> None:
    lines = configured(tmp_path, format="json")
    dsn = "postgresql://ada:hunter2@db/bank"
    try:
        raise ValueError(f"cannot connect to {dsn}")
    except ValueError as error:
        logs.logger().error(
            f"at {dsn}", dsn=dsn, error=error, password="hunter2", deep=[{"token": "hunter2"}], exc_info=True
        )
    logging.getLogger("psycopg.pool").warning("connecting to %s", dsn, extra={"conninfo": "password=hunter2"})
    assert len(lines()) == 2
    assert "hunter2" not in (tmp_path / "host.log").read_text()


def test_other_libraries_speak_from_warning_on_and_ours_from_the_level(tmp_path: Path) -> None:
    lines = configured(tmp_path, format="json", level="debug")
    logging.getLogger("uvicorn.error").info("quiet")
    logging.getLogger("py4j.java_gateway").warning("gateway %s", "gone", extra={"port": 25333})
    logging.getLogger("leasehold.leases.keeper").debug("mine")
    logs.logger().debug("mine too")
    first, *rest = lines()
    assert (first["event"], first["logger"], first["port"], first["host"]) == (
        "gateway gone",
        "py4j.java_gateway",
        25333,
        "host-a",
    )
    assert [line["event"] for line in rest] == ["mine", "mine too"]


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_azures_sdks_speak_with_debug_alone_since_their_errors_are_told_by_us(tmp_path: Path, level: str) -> None:
    lines = configured(tmp_path, format="json", level=level)
    logging.getLogger("azure.cosmos._GlobalEndpointManager").error("Health check task failed: %s", "throttled")
    assert [line["event"] for line in lines()] == (["Health check task failed: throttled"] if level == "debug" else [])


@pytest.mark.parametrize(
    ("level", "expected"), [("debug", "diwe"), ("info", "iwe"), ("warning", "we"), ("error", "e"), ("off", "")]
)
def test_a_level_lets_through_itself_and_worse(tmp_path: Path, level: str, expected: str) -> None:
    lines = configured(tmp_path, format="json", level=level)
    log = logs.logger()
    for name in ("debug", "info", "warning", "error"):
        getattr(log, name)(name[0])
    assert "".join(line["event"] for line in lines()) == expected


def test_off_silences_other_libraries_and_warnings_too(tmp_path: Path) -> None:
    lines = configured(tmp_path, level="off")
    logging.getLogger("py4j.java_gateway").critical("gateway gone")
    logging.getLogger("leasehold.leases.keeper").critical("mine")
    warnings.warn("deprecated", stacklevel=1)
    assert lines() == []


def test_a_field_does_not_pass_for_what_every_line_says(tmp_path: Path) -> None:
    lines = configured(tmp_path, format="json")
    logs.logger().info("attached", level=3, host="b", time=1)
    (line,) = lines()
    assert (line["level"], line["level_"], line["host"], line["host_"], line["time_"]) == ("info", 3, "host-a", "b", 1)


def test_any_value_can_be_logged(tmp_path: Path) -> None:
    lines = configured(tmp_path, format="json")
    logs.logger().info("odd", a=float("nan"), b=b"\xff", c={1: {2}}, d=Path("/x"), e=KeyError(), f=(1, 2))
    (line,) = lines()
    assert (line["a"], line["c"], line["d"], line["e"], line["f"]) == ("nan", {"1": [2]}, "/x", "KeyError", [1, 2])


def test_warnings_of_python_are_logged(tmp_path: Path) -> None:
    lines = configured(tmp_path, format="json")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old ways", stacklevel=1)
    assert any("old ways" in line["event"] for line in lines())


def test_configuring_again_replaces_what_was(tmp_path: Path) -> None:
    first = configured(tmp_path, format="json")
    logs.configure(LogSettings(file=tmp_path / "second.log"), "host-b")
    logs.logger().info("once")
    assert first() == []
    assert " host-b once" in (tmp_path / "second.log").read_text()


def test_standard_error_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogSettings(), "host-a")
    logs.logger().info("started")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("info    host-a started\n")


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    lines = configured(tmp_path, format="json")
    logs.logger().info("before")
    (tmp_path / "host.log").rename(tmp_path / "host.log.1")
    logs.logger().info("after")
    assert [line["event"] for line in lines()] == ["after"]


def test_a_file_that_cannot_be_opened_is_a_problem_of_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"log\.file is '.*/missing/host\.log', and cannot be opened \(no such file"
    ):
        logs.configure(LogSettings(file=tmp_path / "missing/host.log"), "host-a")


def test_a_device_that_takes_nothing_and_a_pipe_without_a_reader_are_problems_of_the_configuration(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for file, why in (("/dev/full", "no space left on device"), (str(tmp_path / "pipe"), "no such device or address")):
        with pytest.raises(ConfigurationError, match=rf"log\.file is '{file}', and cannot be opened \({why}"):
            logs.configure(LogSettings(file=Path(file)), "host-a")


def test_a_pipe_with_a_reader_takes_lines(tmp_path: Path) -> None:
    """As /dev/stdout in a container."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    logs.configure(LogSettings(file=tmp_path / "pipe"), "host-a")
    logs.logger().info("hello")
    assert b"hello" in os.read(reader, 1000)
    os.close(reader)


def test_lines_that_cannot_be_written_cost_the_host_nothing_and_are_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "logs"
    place.mkdir()
    logs.configure(LogSettings(file=place / "host.log"), "host-a")
    logs.logger().info("before")
    for _ in range(2):
        shutil.rmtree(place)
        logs.logger().info("lost")
        logs.logger().info("lost too")
        place.mkdir()
        logs.logger().info("after")
    reported = (
        f"leasehold: log.file is '{place}/host.log', and cannot be written (no such file or directory): lines are lost"
    )
    assert capsys.readouterr().err.splitlines() == [f"{reported} until it can be"] * 2
    assert (place / "host.log").read_text().endswith("after\n")


def test_a_disk_that_becomes_full_costs_lines_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure(LogSettings(file=tmp_path / "host.log"), "host-a")
    (handler,) = [each for each in logging.getLogger().handlers if each.name == "leasehold"]
    assert isinstance(handler, WatchedFileHandler)
    file = os.dup(handler.stream.fileno())
    with open("/dev/full", "w") as full:
        os.dup2(full.fileno(), handler.stream.fileno())
    logs.logger().info("late")
    logs.logger().info("late too")
    os.dup2(file, handler.stream.fileno())
    os.close(file)
    logs.logger().info("after")
    error = capsys.readouterr().err
    assert (error.count("cannot be written (no space left on device)"), "Traceback" in error) == (1, False)


# Of a program that runs a processor


def test_a_program_without_structlog_of_its_own_gets_info_lines_on_stderr_and_its_logging_stays_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    log = logs.default_logger("my-program").bind(pipeline="bank")
    log.debug("batch delivered")
    log.info("lease acquired", password="hunter2")
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"\S+Z info    my-program lease acquired pipeline=bank password=\*+\n", err)
    assert ((root.level, list(root.handlers)), structlog.is_configured()) == (before, False)


def test_a_program_with_structlog_of_its_own_keeps_it() -> None:
    said: list[Any] = []

    def keep(logger: Any, method: str, event: Any) -> Any:
        said.append((method, dict(event)))
        raise structlog.DropEvent

    structlog.configure(processors=[keep])
    logs.default_logger("my-program").debug("batch delivered")
    assert said == [("debug", {"host": "my-program", "event": "batch delivered"})]


def test_a_program_that_calls_configure_gets_what_it_asked_for(tmp_path: Path) -> None:
    lines = configured(tmp_path, format="json", level="debug")
    logs.default_logger("my-program").debug("batch delivered")
    (line,) = lines()
    assert (line["level"], line["host"], line.keys()) == ("debug", "host-a", {"time", "level", "host", "event"})
