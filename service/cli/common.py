"""What the commands share: how they take a file of settings, how they end, and how they look into the lease container."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from leases.errors import GroupMismatch, LeasesError
from pipeline.errors import PipelineError
from pipeline.imports import search_in
from service.config import load as config
from service.config.settings import Settings
from service.errors import ServiceError, StartFailed
from service.host_name import host_name
from service.redaction import redacted

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger as Log

    from service.cli.offline_view import Read

T = TypeVar("T")
USAGE = 2
INTERRUPTED = 130
FAILED = 1


class PathName(click.Path):
    """A path that is no empty text, which click would take for the current directory."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if not os.fspath(value):
            self.fail(f"the name is empty: name a {self.name}", param, ctx)
        return super().convert(value, param, ctx)


NAMES_MAY_BEGIN_WITH_A_DASH = {"ignore_unknown_options": True}
"""Of commands that are given a partition: `-7F` is one."""
FILE = click.argument("file", type=PathName(path_type=Path, dir_okay=False))


def settings_of(file: Path) -> Settings:
    """Of FILE; what it names as `module:attribute` may lie beside it."""
    try:
        settings = config.load(file, os.environ)
    except config.ConfigurationError as error:
        fail(str(error), code=USAGE)
    search_in(file.absolute().parent)
    return settings


@contextmanager
def named(settings: Settings, *, role: str = "") -> Iterator[str]:
    """Reserve this host's name, as `service.host_name` has it, or fail."""
    with ExitStack() as held:
        try:
            name = held.enter_context(host_name(settings.host, settings.leases, role=role))
        except StartFailed as error:
            fail(str(error), code=USAGE)
        yield name


def log_of(settings: Settings, host: str) -> Log:
    from service.telemetry import logs

    logs.configure(settings.log, host)
    return logs.logger()


def read_offline(file: Path, read: Read[T], pipeline: str | None, *, writes: bool = False, heeds: bool = True) -> T:
    """What `read` finds in the lease container of FILE, seen from a process that runs no host; as
    `service.cli.offline_view` has it."""
    from service.cli.offline_view import look_into
    from service.telemetry import logs

    settings = settings_of(file)
    logs.hush(settings.log)
    names = [each.name for each in settings.pipelines]
    if pipeline is not None and pipeline not in names:
        fail(f"there is no pipeline '{pipeline}' in {file}: it has {', '.join(names)}", code=USAGE)
    return done(look_into(settings, read, pipeline, creates=writes, heeds=heeds))


class Interruptible(click.Group):
    """Ctrl-C before there is anything to stop in good order ends it without a word."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except BrokenPipeError as error:  # click would end in silence; standard output raises OutputLost instead
            fail(f"a connection broke ({error}): see whether its other side is at work, and try again")


def done(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; whatever is expected to go wrong becomes one message and an exit code."""
    try:
        return asyncio.run(work)
    except (StartFailed, GroupMismatch, config.ConfigurationError) as error:
        fail(str(error), code=USAGE)
    except (ServiceError, LeasesError, PipelineError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def is_at_a_terminal() -> bool:
    return sys.stdin.isatty()


def fail(*messages: str, code: int = FAILED) -> NoReturn:
    for message in messages:
        click.echo(f"leasehold: {redacted(message)}", err=True)
    sys.exit(code)
