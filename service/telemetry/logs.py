"""Logs: events with fields. Every line has a time, a level and a host.

    configure(LogSettings(level="debug", format="json"), "host-a")  # once, for the whole process
    logger().info("lease acquired", pipeline="transform", partition="0", epoch=4)

A program that runs a `Processor` may call `configure`, set up structlog in its own way, or do nothing (`default_logger`).

Lines of the standard library's logging have the same form: this project's at the configured level, others' from warning on.
The SDKs of Azure and OpenTelemetry log only with `debug`, because a failure there is reported once, in a line of ours with a
remedy.
What looks like a password is masked before it is written, and nothing in a value can begin a new line.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from typing import Any, TypeGuard, cast

import structlog
from structlog.stdlib import ExtraAdder, ProcessorFormatter
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

from leasehold.service.config.settings import LogSettings
from leasehold.service.errors import ConfigurationError
from leasehold.service.texts import MASK, names_a_secret, readable

PACKAGES = ("leasehold",)
SDKS = ("azure", "opentelemetry")
"""Their errors are also raised or reported, and are logged by the code that gets them."""

SILENT = logging.CRITICAL + 1
_OURS = "leasehold"
_BARE = re.compile(r"""[^\s"'=\\]+""")


def logger() -> FilteringBoundLogger:
    """The service's logger. Fields are keyword arguments; `exc_info=True` adds the traceback of the current exception."""
    return cast(FilteringBoundLogger, structlog.get_logger("leasehold"))


def configure(log: LogSettings, host: str) -> None:
    """Set up logging for the whole process. Raises ConfigurationError if the file cannot be opened."""
    _install(_handler(log, host), _level(log))
    hush(log)


def default_logger(host: str) -> FilteringBoundLogger:
    """For a program that passes no logger: structlog as the program has set it up, or else from `info` on to standard error.

    Nothing of the program's own logging is changed.
    """
    if any(handler.name == _OURS for handler in logging.getLogger().handlers):  # `configure`, which names the host
        return logger()
    if structlog.is_configured():
        return cast(FilteringBoundLogger, structlog.get_logger().bind(host=host))
    log = LogSettings()
    target = logging.Logger("leasehold")  # on its own: no level or handler of the program's applies
    target.addHandler(_handler(log, host))
    return cast(FilteringBoundLogger, structlog.wrap_logger(target, **_through_stdlib(_level(log))))


def hush(log: LogSettings) -> None:
    """Silence SDKs unless the level is `debug`: errors that they both log and raise only help to find a fault in the SDK."""
    for name in SDKS:
        logging.getLogger(name).setLevel(logging.WARNING if log.level == "debug" else SILENT)


def _level(log: LogSettings) -> int:
    return SILENT if log.level == "off" else logging.getLevelNamesMapping()[log.level.upper()]


def _handler(log: LogSettings, host: str) -> logging.Handler:
    handler = _open(log)
    render = _as_json if log.format == "json" else _as_text
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[ExtraAdder()],
            processors=[structlog.processors.format_exc_info, _Stamped(host), render],
            use_get_message=True,
        )
    )
    return handler


class FieldsHandler(logging.Handler):
    """Passes on every line as fields without secrets, and its time. send: must neither wait nor raise.

    level: of this project's own lines; others' are passed on from warning on, as in the log.
    """

    def __init__(self, host: str, send: Callable[[EventDict, float], None], level: str) -> None:
        super().__init__()
        self._found: EventDict = {}
        self._send = send
        self._level = _level(LogSettings.model_validate({"level": level}))
        self._formatter = ProcessorFormatter(
            foreign_pre_chain=[ExtraAdder()],
            processors=[structlog.processors.format_exc_info, _Stamped(host), self._take],
            use_get_message=True,
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Called with the handler's lock held, so that one line is taken at a time."""
        is_ours = record.name.partition(".")[0] in (*PACKAGES, _OURS)
        if record.levelno < (self._level if is_ours else max(self._level, logging.WARNING)):
            return
        try:
            self._formatter.format(record)
            self._send(self._found, record.created)
        except Exception:
            self.handleError(record)

    def _take(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        self._found = event
        return ""


def _through_stdlib(level: int) -> dict[str, Any]:
    return {
        "processors": [ProcessorFormatter.wrap_for_formatter],
        "wrapper_class": structlog.make_filtering_bound_logger(min(level, logging.CRITICAL)),  # its highest
    }


def _open(log: LogSettings) -> logging.Handler:
    if log.file is None:
        return logging.StreamHandler(sys.stderr)
    try:
        if log.file.is_fifo():  # opening it would wait for its reader
            os.close(os.open(log.file, os.O_WRONLY | os.O_NONBLOCK))
        handler = _File(log.file, encoding="utf-8", errors="backslashreplace")
        assert handler.stream is not None, "opened at once"
        os.write(handler.stream.fileno(), b"")
    except OSError as error:
        raise ConfigurationError(
            "configuration",
            [
                f"log.file is '{log.file}', and cannot be opened ({_reason(error)}): name a file that this user may write"
            ],
        ) from None
    return handler


class _File(WatchedFileHandler):
    """A line that cannot be written is lost, and costs the host nothing. Standard error gets the reason once per outage."""

    _is_failing = _has_reported = False

    def emit(self, record: logging.LogRecord) -> None:
        self._is_failing = False
        try:
            super().emit(record)
        except OSError:  # from opening the file again: logging lets it through
            self.handleError(record)
        self._has_reported = self._has_reported and self._is_failing

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # as logging calls it
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self._is_failing = True
        if not self._has_reported:
            self._has_reported = True
            why = f"cannot be written ({_reason(error)}): lines are lost until it can be"
            with suppress(OSError, AttributeError):  # it may be closed
                sys.stderr.write(f"leasehold: log.file is '{self.baseFilename}', and {why}\n")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _install(handler: logging.Handler, level: int) -> None:
    root = logging.getLogger()
    for earlier in [each for each in root.handlers if each.name == _OURS]:
        root.removeHandler(earlier)
        earlier.close()
    handler.name = _OURS
    root.addHandler(handler)
    root.setLevel(max(level, logging.WARNING))
    for package in PACKAGES:
        logging.getLogger(package).setLevel(level)
    logging.captureWarnings(True)
    structlog.configure(
        **_through_stdlib(level), logger_factory=structlog.stdlib.LoggerFactory(), cache_logger_on_first_use=False
    )


class _Stamped:
    """The fields in plain values, without secrets, after those that every line has."""

    def __init__(self, host: str) -> None:
        self._host = host

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        record: logging.LogRecord = event.pop("_record")
        is_ours = event.pop("_from_structlog")
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        stamp = {
            "time": time,
            "level": record.levelname.lower(),
            "host": self._host,
            "event": _attribute_value(event.pop("event")),
        }
        if not is_ours:
            stamp["logger"] = record.name
        fields = {name: MASK if names_a_secret(name) else _attribute_value(value) for name, value in event.items()}
        return stamp | {f"{name}_" if name in stamp else name: value for name, value in fields.items()}


def _attribute_value(value: object) -> object:
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Mapping):
        return {
            str(name): MASK if names_a_secret(str(name)) else _attribute_value(each) for name, each in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_attribute_value(each) for each in value]
    text = str(value) or type(value).__name__ if isinstance(value, BaseException) else str(value)
    return readable(text).encode("utf-8", "backslashreplace").decode("utf-8")


def _as_json(logger: WrappedLogger, method: str, event: EventDict) -> str:
    return _json(event)


def _as_text(logger: WrappedLogger, method: str, event: EventDict) -> str:
    prefix = f"{event.pop('time')} {event.pop('level'):<7} {event.pop('host')}"
    what, exception = str(event.pop("event")), str(event.pop("exception", ""))
    fields = "".join(f" {name}={_value(value)}" for name, value in event.items())
    lines = [f"{prefix} {_printable(what)}{fields}"]
    return "\n".join(lines + [f"{prefix} | {_printable(line)}" for line in exception.splitlines()])


def _value(value: object) -> str:
    text = value if isinstance(value, str) else ", ".join(map(str, value)) if _is_list(value) else _json(value)
    return text if _BARE.fullmatch(text) and text.isprintable() else _json(text)


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, (list, tuple)) and all(isinstance(each, str | int) for each in value)


def _printable(text: str) -> str:
    return text if text.isprintable() else _json(text)


def _json(value: object) -> str:
    """Readable in any language, unless a character is invisible or could end a line."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)
