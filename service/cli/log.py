"""`leasehold log`: show the events of an embedded log that a pipeline writes or reads."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leasehold.service.cli.common import FILE, NAMES_MAY_BEGIN_WITH_A_DASH, USAGE, fail, pipeline_in, settings_of

if TYPE_CHECKING:
    from leasehold.pipeline.connectors.log.feed import LogReader


AT_ONCE = 1000
"""How many events become Python objects at a time."""
NONE = "-"


@click.group("log")
def log() -> None:
    """Show what an embedded log holds."""


@log.command("read", context_settings=NAMES_MAY_BEGIN_WITH_A_DASH)
@FILE
@click.argument("pipeline")
@click.option("--partition", help="Only this one.")
@click.option(
    "--from",
    "start",
    type=click.IntRange(min=0),
    default=0,
    help="The first sequence number to print of each partition.",
)
@click.option(
    "--limit", type=click.IntRange(min=0), help="How many events to print at most, of all partitions together."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per event on standard output.")
def read_log(file: Path, pipeline: str, partition: str | None, start: int, limit: int | None, as_json: bool) -> None:
    """Print the events of the log that PIPELINE writes, or else of the log that it reads.

    A line has partition, sequence number, key and body, separated by tabs; "-" stands for no key and no body. What cannot be
    printed is escaped as in JSON, and a body that is not UTF-8 is printed in base64. Hosts may be running: the command only
    reads the log, and does not wait for new events.
    """
    from leasehold.pipeline.connectors.log.feed import LogReader
    from leasehold.pipeline.connectors.log.partition_file import LogError

    reader = LogReader(_log_of(file, pipeline))
    found = False
    try:
        for event in islice(_events(reader, _partitions(reader, pipeline, partition), start), limit):
            line = json.dumps(_event_fields(event), ensure_ascii=False) if as_json else _event_line(event)
            sys.stdout.write(f"{line}\n")  # not click.echo, which writes out each line at once: there may be millions
            found = True
    except LogError as error:
        fail(str(error))
    if not found and limit != 0:
        click.echo(f"log '{reader.path}' has no events" + (f" from {start} on" if start else " yet"), err=True)


def _log_of(file: Path, pipeline: str) -> Path:
    found = pipeline_in(settings_of(file), file, pipeline)
    if (path := found.sink.log_path or found.feed.log_path) is not None:
        return path
    remedy = "name one with a sink or a feed of `type: log`"
    if found.sink.writes_files:
        remedy = f"`leasehold files read {file} {pipeline}` prints its output"
    return fail(f"pipeline '{pipeline}' of {file} neither writes nor reads a log: {remedy}", code=USAGE)


def _partitions(reader: LogReader, pipeline: str, wanted: str | None) -> list[str]:
    """Raises LogError."""
    there = reader.partitions()
    if not there:
        missing = "holds no partitions" if reader.path.exists() else "does not exist"
        fail(f"log '{reader.path}' {missing} yet: run the pipeline that writes it, or check its path")
    if wanted is not None and wanted not in there:
        fail(f"log '{reader.path}' has no partition '{wanted}': it has {', '.join(there)}")
    return there if wanted is None else [wanted]


def _events(reader: LogReader, partitions: list[str], start: int) -> Iterator[dict[str, Any]]:
    """Rows of EVENT_SCHEMA. Events that retention has dropped are reported on standard error."""
    from leasehold.pipeline.connectors.log.feed import Forgotten

    for partition in partitions:
        for found in reader.read(partition, start):
            if isinstance(found, Forgotten):
                gone = f"partition '{partition}': retention has dropped the events {found.first} to {found.last}"
                click.echo(f"leasehold: {gone}", err=True)
                continue
            for batch in found.to_batches(max_chunksize=AT_ONCE):
                yield from batch.to_pylist()


def _event_fields(event: dict[str, Any]) -> dict[str, Any]:
    from leasehold.service.cli.tables import body_fields

    body, properties = body_fields(event.pop("body")), event["properties"]
    time = event["enqueued_time"].isoformat(timespec="microseconds")
    return event | {"enqueued_time": time, "properties": None if properties is None else dict(properties)} | body


def _event_line(event: dict[str, Any]) -> str:
    columns = (event["partition"], str(event["sequence"]), event["key"], _body_text(event["body"]))
    return "\t".join(NONE if each is None else each if each.isprintable() else json.dumps(each) for each in columns)


def _body_text(body: bytes | None) -> str | None:
    try:
        return None if body is None else body.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(body or b'').decode()}"
