"""The command `leasehold`. Exit codes: 0 done, 1 failed, 2 bad usage or configuration.

Commands import what they alone need, since Spark, the REST API and tables take longer to import than most of them to run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
from structlog.typing import FilteringBoundLogger as Log

from leases.errors import LeasesError, StoreMissing
from pipeline.errors import PipelineError
from pipeline.imports import search_in
from service import config, telemetry
from service.errors import ServiceError, StartFailed
from service.host_name import host_name
from service.redaction import redacted
from service.settings import Settings

if TYPE_CHECKING:
    from leases.keeper import Keeper
    from service.lag import Backlog, Lag
    from service.look import Read
    from service.status import LeaseStatus
    from service.view import View

T = TypeVar("T")
USAGE = 2
FAILED = 1


class PathName(click.Path):
    """A path that is no empty text, which click would take for the current directory."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if not os.fspath(value):
            self.fail(f"the name is empty: name a {self.name}", param, ctx)
        return super().convert(value, param, ctx)


FILE = click.argument("file", type=PathName(path_type=Path, dir_okay=False))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="leasehold")
def main() -> None:
    """Leasehold: partitions of a feed, shared by hosts, through Spark micro-batches, delivered exactly once."""


@main.command()
@FILE
@click.option(
    "--until-idle",
    is_flag=True,
    help="Stop once the whole group has nothing left to do: with exit code 0, or 1 where a partition cannot go on.",
)
def run(file: Path, until_idle: bool) -> None:
    """Process the pipelines of FILE until told to stop (Ctrl-C, SIGTERM).

    Run it as often as you like: hosts on one FILE share its partitions.
    """
    from service.run import run as run_processor
    from service.tables import stopped
    from service.wiring import processor_of

    settings = _settings(file)
    with host_name(settings.host) as name:
        log = _log(settings, name)

        async def work() -> Backlog | None:
            processor = processor_of(settings, host=name, log=log)
            return await run_processor(processor, settings.api, until_idle=until_idle, log=log)

        last = _done(work())
    if last is not None and (last.failed or last.held):
        _fail(
            *(stopped(pipeline, partition, why) for (pipeline, partition), why in sorted(last.failed.items())),
            *(
                f"pipeline '{p}', partition '{part}' is unfinished: {why}"
                for (p, part), why in sorted(last.held.items())
            ),
        )


@main.command()
@FILE
@click.option(
    "--probe", is_flag=True, help="Also connect: lease container, feeds, sinks, and Spark on every transform."
)
def check(file: Path, probe: bool) -> None:
    """Say what is wrong with FILE, all of it at once.

    With --probe, connect to everything it names as well, and let Spark look at every transform. Sinks create what they need,
    and nothing is processed.
    """
    settings = _settings(file)
    click.echo(f"settings: fine, {len(settings.pipelines)} pipelines")
    if probe:
        from service.probe import probed

        _log(settings, "check")
        if not _done(probed(settings, click.echo)):
            sys.exit(USAGE)


@main.group()
def leases() -> None:
    """Look at leases, and release them."""


@leases.command("list")
@FILE
@click.option("--pipeline", help="Only this one.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array on standard output.")
def list_leases(file: Path, pipeline: str | None, as_json: bool) -> None:
    """Who owns which partition, and how far it got.

    Whether an owner is still alive only hosts know, by watching: ask one at /api/leases.
    """

    from service.tables import lease_fields, leases_table, screen_of

    async def read(view: View, keeper: Keeper) -> list[LeaseStatus]:
        return [status for status in (await view.group()).leases.values() if pipeline in (None, status.lease.pipeline)]

    found = _viewed(file, read, pipeline)
    if as_json:
        click.echo(json.dumps([lease_fields(status) for status in found], ensure_ascii=False))
    else:
        screen_of(sys.stdout).print(leases_table(found))


@leases.command("show")
@FILE
@click.argument("pipeline")
@click.argument("partition")
def show_lease(file: Path, pipeline: str, partition: str) -> None:
    """One lease, whole, as JSON."""
    from service.tables import lease_fields

    found = _viewed(file, _one(pipeline, partition), pipeline)
    click.echo(json.dumps(lease_fields(found), ensure_ascii=False, indent=2))


@leases.command("release")
@FILE
@click.argument("pipeline")
@click.argument("partition")
def release_lease(file: Path, pipeline: str, partition: str) -> None:
    """Take a lease from its owner. It keeps its position, and any host may take it next, the same one too.

    The owner notices at its next write to the lease; whatever it still sends is refused by a sink that keeps its position.
    """

    from leases.keeper import Seen

    async def released(view: View, keeper: Keeper) -> str:
        status = await _one(pipeline, partition)(view, keeper)
        if status.lease.owner is None:
            return f"lease '{partition}' of pipeline '{pipeline}' has no owner: nothing to release"
        await keeper.revoke(Seen(status.lease, status.etag))
        return f"lease '{partition}' of pipeline '{pipeline}' released by '{status.lease.owner}' (epoch {status.lease.epoch})"

    click.echo(_viewed(file, released, pipeline))


@main.command()
@FILE
@click.option("--pipeline", help="Only this one.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def lag(file: Path, pipeline: str | None, as_json: bool) -> None:
    """How many events lie before each partition."""

    from service.tables import lag_table, screen_of

    async def measured(view: View, keeper: Keeper) -> Lag:
        found = await view.lag()
        return found if pipeline is None else found.of(pipeline)

    found = _viewed(file, measured, pipeline)
    if as_json:
        partitions = [dataclasses.asdict(one) for one in found.partitions]
        fields = {"events": found.events, "unknown": found.unknown, "partitions": partitions}
        click.echo(json.dumps(fields, ensure_ascii=False))
    else:
        screen_of(sys.stdout).print(lag_table(found))


@main.command("demo")
@click.option("--dir", "directory", type=PathName(path_type=Path, file_okay=False), help="Keep the state here.")
@click.option(
    "--transactions",
    type=PathName(path_type=Path, dir_okay=False),
    help="A CSV file of your own: transaction_id,account,kind,amount,occurred_at.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, and nothing else there.")
def run_demo(directory: Path | None, transactions: Path | None, as_json: bool) -> None:
    """A bank, end to end: files, a log, Spark and PostgreSQL, all on this machine. Its balances are checked."""
    from service.demo import DemoOptions, demo

    result = _done(demo(DemoOptions(directory=directory, transactions=transactions, as_json=as_json)))
    sys.exit(0 if result.matches else FAILED)


def _settings(file: Path) -> Settings:
    """Of FILE; what it names as `module:attribute` may lie beside it."""
    try:
        settings = config.load(file, os.environ)
    except config.ConfigurationError as error:
        _fail(str(error), code=USAGE)
    search_in(file.absolute().parent)
    return settings


def _log(settings: Settings, host: str) -> Log:
    telemetry.configure(settings.log, host)
    return telemetry.logger()


def _viewed(file: Path, read: Read[T], pipeline: str | None) -> T:
    """What `read` finds in the lease container of FILE, seen from a process that runs no host."""
    from service.look import looked_in

    settings = _settings(file)
    names = [each.name for each in settings.pipelines]
    if pipeline is not None and pipeline not in names:
        _fail(f"there is no pipeline '{pipeline}' in {file}: it has {', '.join(names)}", code=USAGE)
    return _done(looked_in(settings, read, pipeline))


def _one(pipeline: str, partition: str) -> Read[LeaseStatus]:
    async def read(view: View, keeper: Keeper) -> LeaseStatus:
        found = (await view.group()).leases.get((pipeline, partition))
        if found is None:
            raise StoreMissing(
                f"pipeline '{pipeline}' has no lease '{partition}': `leasehold leases list` shows those that it has"
            )
        return found

    return read


def _done(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; whatever is expected to go wrong becomes one message and an exit code."""
    try:
        return asyncio.run(work)
    except (StartFailed, config.ConfigurationError) as error:
        _fail(str(error), code=USAGE)
    except (ServiceError, LeasesError, PipelineError) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(*messages: str, code: int = FAILED) -> NoReturn:
    for message in messages:
        click.echo(f"leasehold: {redacted(message)}", err=True)
    sys.exit(code)
