"""What the commands share: how they take a file of settings, how they end, and how they look into the lease store."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeVar

import click

from leasehold.leases.errors import GroupMismatch, LeasesError
from leasehold.pipeline.errors import PipelineError, PySparkReplaced
from leasehold.pipeline.imports import search_in
from leasehold.service.cli.host_name import host_name
from leasehold.service.config import load as config
from leasehold.service.config.pipeline import Pipeline
from leasehold.service.config.settings import Settings
from leasehold.service.errors import ConfigurationError, ServiceError, StartFailed
from leasehold.service.texts import redacted

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from structlog.typing import FilteringBoundLogger as Log

    from leasehold.service.cli.offline_view import Read


# Standard streams that may be closed, and standard output whose reader may leave: `leasehold ... | head` ends silently.
#
# Only writes to standard output count. SIGPIPE stays ignored, because it would also end a host whose connection to a database
# breaks; and a BrokenPipeError of a connection stays an error that is reported.


READER_LEFT = 141
"""The exit code of a process that SIGPIPE ended, which shells and their `pipefail` know: SIGNALLED + 13."""
SIGNALLED = 128
"""The exit code of a process that a signal ended is this plus the signal's number."""


class OutputLost(SystemExit):
    """Standard output accepts no more. This ends the command, and no handler of errors mistakes it for a failure of the work."""


class _Output(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            self._discard_the_rest()
            raise OutputLost(READER_LEFT) from None
        except OSError as error:
            self._discard_the_rest()
            reason = error.strerror or str(error)
            raise OutputLost(f"leasehold: standard output cannot be written ({reason}): write it elsewhere") from None

    def _discard_the_rest(self) -> None:
        """Otherwise Python would complain again when it flushes what is left in its buffers."""
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self.fileno())
        os.close(nothing)


def open_closed_streams() -> None:
    """Give a process that was started without standard input, output or error (`<&-`) empty ones.

    Otherwise Python has None for the stream, and the next file or socket that is opened gets its number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - gets the number of the missing stream
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


@contextmanager
def watched_output() -> Iterator[None]:
    """Within, a write to standard output that is lost raises OutputLost. What is buffered is written at the end."""
    before = sys.stdout
    if (output := _watched(before)) is None:
        yield
        return
    sys.stdout = output
    try:
        yield
        output.flush()
    except SystemExit as ended:
        _flush(output, keeps_code=bool(ended.code))
        raise
    except BaseException:
        _flush(output, keeps_code=True)
        raise
    finally:
        sys.stdout = before


def _watched(stream: TextIO) -> TextIO | None:
    """None for a stream without a file descriptor, as in tests."""
    try:
        number = stream.fileno()
    except (AttributeError, OSError):
        return None
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(number, "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.isatty(),
    )


def _flush(output: TextIO, *, keeps_code: bool) -> None:
    """keeps_code: the pending exit code matters more than a reader that left."""
    try:
        output.flush()
    except OutputLost:
        if not keeps_code:
            raise


SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def finish_first(notice: str) -> Iterator[None]:
    """Within, the first SIGINT or SIGTERM prints `notice`, and ends the command after the work. A second one ends it at once.

    For work that must not be left halfway. Signals that the process was started to ignore stay ignored.
    """
    received: list[int] = []
    before = {each: signal.getsignal(each) for each in SIGNALS if signal.getsignal(each) != signal.SIG_IGN}

    def note(number: int, frame: object) -> None:
        received.append(number)
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        click.echo(f"leasehold: {notice}", err=True)

    for each in before:
        signal.signal(each, note)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if received:
        sys.exit(SIGNALLED + received[0])


@contextmanager
def unread_is_fine() -> Iterator[None]:
    """For the report of a command whose work is done: its exit code is that of the work, whether its report was read or not."""
    with suppress(OutputLost):
        yield


T = TypeVar("T")
USAGE = 2
INTERRUPTED = 130
FAILED = 1


class PathName(click.Path):
    """A path that is not empty; click would take an empty one for the current directory."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if not os.fspath(value):
            self.fail(f"the name is empty: name a {self.name}", param, ctx)
        return super().convert(value, param, ctx)


NAMES_MAY_BEGIN_WITH_A_DASH = {"ignore_unknown_options": True}
"""For commands with a partition argument: `-7F` is one."""
FILE = click.argument("file", type=PathName(path_type=Path, dir_okay=False))


def settings_of(file: Path) -> Settings:
    """The settings in FILE. Modules that it names as `module:attribute` may be in the same directory."""
    try:
        settings = config.load(file, os.environ)
    except ConfigurationError as error:
        fail(str(error), code=USAGE)
    search_in(file.absolute().parent)
    return settings


def pipeline_in(settings: Settings, file: Path, pipeline: str) -> Pipeline:
    """The pipeline of this name in FILE, or fail."""
    found = {each.name: each for each in settings.pipelines}
    if pipeline not in found:
        fail(f"there is no pipeline '{pipeline}' in {file}: it has {', '.join(found)}", code=USAGE)
    return found[pipeline]


@contextmanager
def named(settings: Settings, *, role: str = "") -> Iterator[str]:
    """Reserve this host's name (`leasehold.service.cli.host_name`), or fail."""
    with ExitStack() as held:
        try:
            name = held.enter_context(host_name(settings.host, settings.leases, role=role))
        except StartFailed as error:
            fail(str(error), code=USAGE)
        yield name


def log_of(settings: Settings, host: str) -> Log:
    from leasehold.service.telemetry import logs

    logs.configure(settings.log, host)
    return logs.logger()


def read_offline(file: Path, read: Read[T], pipeline: str | None, *, writes: bool = False, heeds: bool = True) -> T:
    """What `read` finds in the lease store of FILE, seen from a process that runs no host
    (`leasehold.service.cli.offline_view`)."""
    from leasehold.service.cli.offline_view import look_into
    from leasehold.service.telemetry import logs

    settings = settings_of(file)
    logs.hush(settings.log)
    if pipeline is not None:
        pipeline_in(settings, file, pipeline)
    return done(look_into(settings, read, pipeline, creates=writes, heeds=heeds, warn=warn))


class Interruptible(click.Group):
    """Ctrl-C before there is anything to stop in good order ends the command silently."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except PySparkReplaced as error:
            fail(str(error), code=USAGE)
        except BrokenPipeError as error:  # click would end in silence; standard output raises OutputLost instead
            fail(f"a connection broke ({error}): check that the other side is running, and try again")


def done(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; each expected error becomes one message and an exit code."""
    try:
        return asyncio.run(work)
    except (StartFailed, GroupMismatch, ConfigurationError) as error:
        fail(str(error), code=USAGE)
    except (ServiceError, LeasesError, PipelineError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def is_at_a_terminal() -> bool:
    return sys.stdin.isatty()


def warn(message: str) -> None:
    click.echo(f"leasehold: {redacted(message)}", err=True)


def fail(*messages: str, code: int = FAILED) -> NoReturn:
    for message in messages:
        warn(message)
    sys.exit(code)


@contextmanager
def importing() -> Iterator[None]:
    """Collect no garbage within, nor later among what has been imported: that would slow startup."""
    is_looking = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if is_looking:
            gc.enable()
