"""`leasehold files`: the contents of a sink `files`, according to its manifest."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, TypeVar

import click

from leasehold.leases.errors import LeasesError
from leasehold.pipeline.errors import PipelineError
from leasehold.service.cli.common import (
    FILE,
    NAMES_MAY_BEGIN_WITH_A_DASH,
    USAGE,
    PathName,
    fail,
    finish_first,
    settings_of,
    unread_is_fine,
)
from leasehold.service.config.files import FilesSink
from leasehold.service.errors import ServiceError
from leasehold.service.texts import counted

if TYPE_CHECKING:
    from leasehold.leases.keeper import Keeper
    from leasehold.pipeline.connectors.files.delta import Table
    from leasehold.pipeline.connectors.files.sink import Snapshot
    from leasehold.pipeline.connectors.files.sink.storage import Storage
    from leasehold.service.group.view import View


T = TypeVar("T")
PARTITION = click.option("--partition", help="Only this one.")


@click.group()
def files() -> None:
    """Look at what a sink `files` holds, copy it elsewhere, and clean up.

    Do not read the files of its directory or container without the manifest: a host that died may have left some that are
    not output.
    """


@files.command("list", context_settings=NAMES_MAY_BEGIN_WITH_A_DASH)
@FILE
@click.argument("pipeline")
@PARTITION
@click.option("--json", "as_json", is_flag=True, help="One JSON object per file on standard output.")
def list_files(file: Path, pipeline: str, partition: str | None, as_json: bool) -> None:
    """List the files that count now, in the order in which they were delivered: one path or address per line."""
    place = _storage_of(file, pipeline)
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
    """Print all rows that count now as JSON lines, or write them to one Parquet file."""
    from leasehold.pipeline.connectors.files.sink.formats import decoded, encoded

    place = _storage_of(file, pipeline)
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


def _explain_nothing(file: Path, pipeline: str, partition: str | None, place: Storage, *, is_claimed: bool) -> str:
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
    from leasehold.service.cli.offline_view import look_into

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
@click.option("--dry-run", is_flag=True, help="Only print what would be deleted.")
def clean_files(file: Path, pipeline: str, dry_run: bool) -> None:
    """Delete leftovers of hosts that died while writing. This is safe at any time, whether or not hosts run."""
    from leasehold.pipeline.connectors.files.sink import leftovers

    place = _storage_of(file, pipeline)
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


@files.command("compact", context_settings=NAMES_MAY_BEGIN_WITH_A_DASH)
@FILE
@click.argument("pipeline")
@click.option("--target-mb", type=click.IntRange(min=1), help="The size of files to aim at. By default the table's.")
def compact_files(file: Path, pipeline: str, target_mb: int | None) -> None:
    """Merge the small files of a Delta table into larger ones. Hosts may be running, and continue meanwhile.

    The old files stay for readers that have them open, until `leasehold files vacuum` deletes them.

    Ctrl-C or SIGTERM ends the command when the compaction is done. A second one ends it at once, and its lock file stays.
    """
    from leasehold.pipeline.connectors.files.delta import compact_in_thread

    target_bytes = None if target_mb is None else target_mb * 1024 * 1024
    with finish_first("the compaction is completed first; a second signal ends it at once, and its lock file stays"):
        with _table(file, pipeline, is_compacted=True) as (_, table):
            found = _done(lambda: compact_in_thread(table, target_bytes))
        removed, added = int(found["numFilesRemoved"]), int(found["numFilesAdded"])
        click.echo(f"{counted(removed, 'file')} became {added}" if removed else "nothing to compact")


@files.command("vacuum", context_settings=NAMES_MAY_BEGIN_WITH_A_DASH)
@FILE
@click.argument("pipeline")
@click.option("--retention-hours", type=click.IntRange(min=168), help="By default the table's, which is 7 days.")
@click.option("--dry-run", is_flag=True, help="Only print what would be deleted.")
def vacuum_files(file: Path, pipeline: str, retention_hours: int | None, dry_run: bool) -> None:
    """Delete files that a Delta table no longer needs: replaced ones, and those of attempts that failed.

    The table's versions before the retention cannot be read afterwards. Files that executors of an earlier owner staged, and
    that were never committed, need no retention: they are deleted at once, unless `--retention-hours` is given.
    """
    from leasehold.pipeline.connectors.files.delta import vacuum_table

    with _table(file, pipeline) as (place, table):
        gone = _done(lambda: vacuum_table(place, table, retention_hours=retention_hours, dry_run=dry_run))
    with unread_is_fine():
        for name in gone:
            click.echo(f"{'would delete' if dry_run else 'deleted'} {name}")


@contextmanager
def _table(file: Path, pipeline: str, *, is_compacted: bool = False) -> Iterator[tuple[Storage, Table]]:
    """The newest table, and the place with its files. is_compacted: no other command compacts it meanwhile."""
    sink = next((each.sink for each in settings_of(file).pipelines if each.name == pipeline), None)
    if not isinstance(sink, FilesSink) or sink.format != "delta":
        what = "does not exist" if sink is None else "does not write a Delta table"
        fail(f"pipeline '{pipeline}' of {file} {what}: name one whose sink has `format: delta`", code=USAGE)
    from leasehold.pipeline.connectors.files.delta import Table, exclusive_compaction

    place, location = sink.make_table_place()
    with closing(place), ExitStack() as stack:
        table = Table(location, is_rewriting=bool(sink.key_columns))
        if not _done(table.exists):
            fail(f"pipeline '{pipeline}' has written no table yet: `leasehold run {file}` does")
        if is_compacted:
            own = f"process {os.getpid()} on {socket.gethostname()}"
            _done(lambda: stack.enter_context(exclusive_compaction(place, own)))
        _done(table.refresh)
        yield place, table


def _storage_of(file: Path, pipeline: str) -> Storage:
    sink = next((each.sink for each in settings_of(file).pipelines if each.name == pipeline), None)
    what, remedy = "does not exist", "name one whose sink is `type: files`"
    if sink is not None:
        if sink.writes_files:
            return sink.make_place()
        what = "does not write files"
        if isinstance(sink, FilesSink):
            what, remedy = "writes a Delta table", "read it with any reader of Delta, `polars.read_delta` for example"
        if sink.log_path is not None:
            what, remedy = "writes a log, not files", f"`leasehold log read {file} {pipeline}` prints its events"
    return fail(f"pipeline '{pipeline}' of {file} {what}: {remedy}", code=USAGE)


def _snapshot(place: Storage, pipeline: str, partition: str | None) -> Snapshot:
    from leasehold.pipeline.connectors.files.sink import snapshot_of

    return _done(lambda: snapshot_of(place, pipeline=pipeline, partition=partition))


def _done(work: Callable[[], T]) -> T:
    try:
        return work()
    except (PipelineError, OSError, ValueError) as error:
        fail(str(error))
