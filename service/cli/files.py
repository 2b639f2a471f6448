"""`leasehold files`: what a sink `files` holds, as its manifest tells it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, TypeVar

import click

from leases.errors import LeasesError
from pipeline.errors import PipelineError
from service.cli.common import FILE, NAMES_MAY_BEGIN_WITH_A_DASH, USAGE, PathName, fail, settings_of, unread_is_fine
from service.errors import ServiceError
from service.plurals import counted

if TYPE_CHECKING:
    from leases.keeper import Keeper
    from pipeline.connectors.files.sink import Snapshot
    from pipeline.connectors.files.sink.storage import Place
    from service.group.view import View

T = TypeVar("T")
PARTITION = click.option("--partition", help="Only this one.")


@click.group()
def files() -> None:
    """Look at what a sink `files` holds, and take it elsewhere.

    The files of its directory or container are not to be read without the manifest: some are no output, but left by a host
    that died.
    """


@files.command("list", context_settings=NAMES_MAY_BEGIN_WITH_A_DASH)
@FILE
@click.argument("pipeline")
@PARTITION
@click.option("--json", "as_json", is_flag=True, help="One JSON object a file on standard output.")
def list_files(file: Path, pipeline: str, partition: str | None, as_json: bool) -> None:
    """The files that count now, in the order in which they were delivered: one path or address a line."""
    place = _place(file, pipeline)
    snapshot = _snapshot(place, pipeline, partition)
    for one, path in zip(snapshot.files, snapshot.paths, strict=True):
        click.echo(json.dumps({"path": path, **dataclasses.asdict(one)}, ensure_ascii=False) if as_json else path)


@files.command("read", context_settings=NAMES_MAY_BEGIN_WITH_A_DASH)
@FILE
@click.argument("pipeline")
@PARTITION
@click.option(
    "--to", "to", type=PathName(path_type=Path, dir_okay=False), help="Write one Parquet file instead of lines."
)
def read_files(file: Path, pipeline: str, partition: str | None, to: Path | None) -> None:
    """All rows that count now: as JSON lines on standard output, or as one Parquet file."""
    from pipeline.connectors.files.sink.formats import decoded, encoded

    place = _place(file, pipeline)
    snapshot = _snapshot(place, pipeline, partition)
    if to is not None and not snapshot.files:
        fail(f"pipeline '{pipeline}' has written no files yet: nothing to put into {to}")

    def read() -> None:
        if to is not None:
            to.write_bytes(encoded(snapshot.table(), "parquet"))
            return
        for each, content in snapshot.contents():
            is_lines = each.format == "jsonl"
            sys.stdout.buffer.write(content if is_lines else encoded(decoded(content, each.format), "jsonl"))

    _done(read)
    if not snapshot.files:
        click.echo(_explain_nothing(file, pipeline, partition, place, is_claimed=bool(snapshot.partitions)), err=True)
    if to is not None:
        click.echo(f"{counted(snapshot.rows, 'row')} of {counted(len(snapshot.files), 'file')} in {to}")


def _explain_nothing(file: Path, pipeline: str, partition: str | None, place: Place, *, is_claimed: bool) -> str:
    """is_claimed: whether the place has a manifest of the pipeline or partition."""
    whose = f"pipeline '{pipeline}'" + ("" if partition is None else f", partition '{partition}',")
    if is_claimed or not _has_progress(file, pipeline, partition):
        return f"{whose} has written no files yet to {place.identity}: `leasehold run {file}` does"
    which = "--all" if partition is None else quote(partition)
    return (
        f"{whose} has no files in {place.identity}, although its leases have positions: the directory is empty or was deleted."
        f" Restore it, or deliver all events again: `leasehold leases reset {file} {pipeline} {which} --to earliest --yes`"
    )


def _has_progress(file: Path, pipeline: str, partition: str | None) -> bool:
    """Whether a lease of the pipeline has a position, as far as its leases can be read."""
    from service.cli.offline_view import look_into

    async def read(view: View, keeper: Keeper) -> bool:
        leases = (await keeper.scan([pipeline])).leases
        return any(each.continuation is not None for each in leases if partition in (None, each.partition))

    try:
        return asyncio.run(look_into(settings_of(file), read, heeds=False))
    except (LeasesError, PipelineError, ServiceError):
        return False


@files.command("clean", context_settings=NAMES_MAY_BEGIN_WITH_A_DASH)
@FILE
@click.argument("pipeline")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def clean_files(file: Path, pipeline: str, dry_run: bool) -> None:
    """Delete what hosts left that died while they wrote. It is safe at any time, hosts at work or not."""
    from pipeline.connectors.files.sink import leftovers

    place = _place(file, pipeline)
    snapshot = _snapshot(place, pipeline, None)

    def clean() -> list[str]:
        left = leftovers(place, snapshot)
        for name in () if dry_run else left:
            place.delete(name)
        return left

    gone = _done(clean)
    with unread_is_fine():
        for name in gone:
            click.echo(f"{'would delete' if dry_run else 'deleted'} {place.locate(name)}")


def _place(file: Path, pipeline: str) -> Place:
    from service.config.sinks import FilesSinkSettings, LogSinkSettings
    from service.wiring.dead_letters import place_of

    sinks = {each.name: each.sink for each in settings_of(file).pipelines}
    sink = sinks.get(pipeline)
    if isinstance(sink, FilesSinkSettings):
        return place_of(sink)
    what, remedy = "is not there", "name one whose sink is `type: files`"
    if pipeline in sinks:
        what = "does not write files"
    if isinstance(sink, LogSinkSettings):
        what, remedy = "writes a log, not files", f"`leasehold log read {file} {pipeline}` prints its events"
    return fail(f"pipeline '{pipeline}' of {file} {what}: {remedy}", code=USAGE)


def _snapshot(place: Place, pipeline: str, partition: str | None) -> Snapshot:
    from pipeline.connectors.files.sink import snapshot_of

    return _done(lambda: snapshot_of(place, pipeline=pipeline, partition=partition))


def _done(work: Callable[[], T]) -> T:
    try:
        return work()
    except (PipelineError, OSError, ValueError) as error:
        fail(str(error))
