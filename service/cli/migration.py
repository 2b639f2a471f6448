"""The commands `leasehold leases reset`, `close`, `export` and `import`.

docs/migration.md walks through most of them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from leasehold.leases.document import advised
from leasehold.leases.errors import (
    GroupMismatch,
    InvalidDocument,
    LeasesError,
    StoreAmbiguous,
    StoreConflict,
    StoreMissing,
)
from leasehold.pipeline.errors import PipelineError
from leasehold.service.cli.common import (
    FAILED,
    FILE,
    NAMES_MAY_BEGIN_WITH_A_DASH,
    USAGE,
    PathName,
    fail,
    is_at_a_terminal,
    read_offline,
    settings_of,
    unread_is_fine,
    warn,
)
from leasehold.service.errors import NotNow
from leasehold.service.texts import counted, noun, redacted

if TYPE_CHECKING:
    from leasehold.leases.keeper import Keeper
    from leasehold.leases.lease import Lease
    from leasehold.leases.lineage import Partition
    from leasehold.service.config.settings import Settings
    from leasehold.service.group.import_sources import BlobSource, Source
    from leasehold.service.group.migration import Report
    from leasehold.service.group.view import View

CONNECTION_STRING = "LEASEHOLD_IMPORT_CONNECTION_STRING"
"""Environment variable for the account with the old blobs: it is a secret."""
ACCOUNT_URL = click.option(
    "--account-url",
    help="The account of that container, if it is not that of the leases: azure-identity finds the credentials. Or set"
    f" {CONNECTION_STRING} in the environment.",
)


@click.command("reset", context_settings=NAMES_MAY_BEGIN_WITH_A_DASH)
@FILE
@click.argument("pipeline")
@click.argument("partitions", metavar="[PARTITION]...", nargs=-1)
@click.option("--all", "reset_all", is_flag=True, help="Reset every lease of the pipeline, except closed ones.")
@click.option(
    "--to",
    "place",
    required=True,
    help="earliest, latest, a time with its offset from UTC (2026-01-31T12:00:00Z), or a continuation from `leases show`.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation. A reset requires it without a terminal.")
def reset_leases(
    file: Path, pipeline: str, partitions: tuple[str, ...], reset_all: bool, place: str, yes: bool
) -> None:
    """Set the position of leases, forwards or back. The events in between are skipped, or delivered again.

    A reset starts a new generation, which ignores the position in the sink: sums count redelivered events a second time. So
    the command shows what is going to happen, and asks once for all partitions. Pause the pipeline first: an owner loses the
    lease at its next write. A reset opens a closed lease that is named. It creates a new lease if the document was deleted or
    cannot be read.
    """
    from leasehold.service.group.migration import reset, start_in
    from leasehold.service.outside_checkpoints import write_reset

    if bool(partitions) == reset_all:
        fail("name the partitions to reset, or use --all for all leases of the pipeline", code=USAGE)
    names, place = _all_of(file, pipeline) if reset_all else [*dict.fromkeys(partitions)], unescaped(place)
    if not yes:
        _ask(file, pipeline, names, place)

    async def run(view: View, keeper: Keeper) -> list[str]:
        problems = []
        for name in names:
            try:
                now_ms = int(datetime.now(UTC).timestamp() * 1e3)
                before, after = await reset(keeper, view.pipelines[pipeline], name, start_in(place), now_ms=now_ms)
            except GroupMismatch:
                raise
            except (LeasesError, PipelineError) as error:  # does not stop the others
                problems.append(str(error))
                continue
            with unread_is_fine():
                click.echo(_describe_reset(before, after))
            if note := await write_reset(view.pipelines[pipeline].outside_checkpoints, after):
                warn(note)
        return problems

    if problems := read_offline(file, run, pipeline, heeds=False):
        fail(*problems)


def unescaped(place: str) -> str:
    r"""A continuation that is a JSON object, as it was before a log line or `leases show` escaped its quotes."""
    return place.replace('\\"', '"') if place.startswith('{\\"') else place


def _all_of(file: Path, pipeline: str) -> list[str]:
    """The partitions of all leases that an operator has not closed and that have not ended. Fails if there are none."""

    async def read(view: View, keeper: Keeper) -> list[str]:
        scan = await keeper.scan([pipeline])
        still_open = {lease.partition for lease in scan.leases if not lease.closed}
        return sorted(still_open | {partition for _, partition in scan.unreadable})

    names = read_offline(file, read, pipeline)
    return names or fail(f"all leases of pipeline '{pipeline}' are closed: name those to open")


def _describe_reset(before: Lease | None, after: Lease) -> str:
    at = "the feed's beginning" if after.continuation is None else after.continuation
    line = f"lease '{after.partition}' of pipeline '{after.pipeline}' was reset to {at}, generation {after.generation}"
    if before is None:
        return f"{line}; its document is new"
    return f"{line}; '{before.owner}' loses it at its next write" if before.owner else line


def _ask(file: Path, pipeline: str, partitions: Sequence[str], place: str) -> None:
    """Continue only if a person confirms the reset."""
    from leasehold.service.group.migration import plan_reset, start_in

    async def plan(view: View, keeper: Keeper) -> list[str]:
        plans = [await plan_reset(keeper, view.pipelines[pipeline], name, start_in(place)) for name in partitions]
        return [*dict.fromkeys(line for each in plans for line in each.lines)]

    lines = read_offline(file, plan, pipeline, heeds=False)
    if not is_at_a_terminal():
        fail(*lines, f"nothing was changed: to reset {noun(len(partitions), 'it', 'them')}, add --yes", code=USAGE)
    for line in lines:
        click.echo(redacted(line), err=True)
    if not click.confirm(f"Reset {noun(len(partitions), 'it', 'them')}?", err=True):
        fail("nothing was changed")


@click.command("export")
@FILE
@click.option("--pipeline", help="Only this one.")
@click.option(
    "-o", "--output", type=PathName(path_type=Path, dir_okay=False), help="A file, instead of standard output."
)
@click.option(
    "--to",
    "target",
    type=click.Choice(["leasehold", "eventprocessorhost"]),
    default="leasehold",
    show_default=True,
    help="What reads them: `leasehold leases import`, or an EventProcessorHost of Event Hubs (.NET).",
)
@click.option(
    "--prefix", help="The folder of an EventProcessorHost's blobs: its prefix and its consumer group, such as $Default."
)
@click.option("--container", help="The container in which to write these blobs, instead of printing them.")
@ACCOUNT_URL
def export_leases(
    file: Path,
    pipeline: str | None,
    output: Path | None,
    target: str,
    prefix: str | None,
    container: str | None,
    account_url: str | None,
) -> None:
    """Print all leases in full, as JSON lines for `leasehold leases import --from leasehold`.

    With `--to eventprocessorhost`, export the blobs from which such a host continues. Stop the hosts first. Otherwise the leases
    move while they are read.
    """
    from leasehold.leases.document import to_json
    from leasehold.service.group.migration import export_host_blobs, export_leases

    is_for_hosts = target == "eventprocessorhost"
    if is_for_hosts != (prefix is not None) or (is_for_hosts and pipeline is None):
        fail("--to eventprocessorhost needs --pipeline and --prefix, and --prefix needs it", code=USAGE)
    if (container or account_url) and (output or not is_for_hosts):
        fail("--container and --account-url need --to eventprocessorhost, without --output", code=USAGE)
    settings = settings_of(file)

    async def read(view: View, keeper: Keeper) -> tuple[list[str], list[str]]:
        if prefix is None or pipeline is None:
            named = [each for name, each in view.pipelines.items() if pipeline in (None, name)]
            return await export_leases(keeper, named)
        blobs, problems = await export_host_blobs(keeper, view.pipelines[pipeline], prefix)
        if container and not problems:
            await _write_blobs(settings, container, account_url, blobs)
        return [to_json(blob) for blob in blobs], problems

    lines, problems = read_offline(file, read, pipeline)
    if problems and is_for_hosts:
        fail(*(f"nothing was exported: {problem}" for problem in problems))
    text = "".join(f"{line}\n" for line in lines)
    if container:
        click.echo(f"{counted(len(lines), 'blob')} written to {container}/{prefix}", err=True)
    elif output is None:
        click.echo(text, nl=False)
    else:
        _write(output, text)
        click.echo(f"{counted(len(lines), 'line')} written to {output}", err=True)
    if problems:
        fail(*(f"not exported: {problem}" for problem in problems))


async def _write_blobs(
    settings: Settings, container: str, account_url: str | None, blobs: Sequence[Mapping[str, object]]
) -> None:
    """Raises StartFailed, StoreError."""
    if (others := _blobs_of(settings, container, account_url)) is None:
        fail(f"name the account of the blobs: --account-url, or {CONNECTION_STRING}", code=USAGE)
    try:
        for blob in blobs:
            await others.write(str(blob["name"]), json.dumps(blob["content"]))
    finally:
        await others.close()


@click.command("import")
@FILE
@click.argument("input", required=False, type=click.Path(allow_dash=True, dir_okay=False))
@click.option("--pipeline", required=True, help="The pipeline that gets the leases.")
@click.option(
    "--from",
    "source",
    required=True,
    type=click.Choice(["leasehold", "dotnet", "java", "eventprocessorhost", "checkpointstore"]),
    help="What wrote them: `leasehold leases export`; the change feed processor of .NET (the V2 library too) or Java; or, of"
    " Event Hubs, an EventProcessorHost or a processor with a BlobCheckpointStore.",
)
@click.option(
    "--prefix",
    help="How the ids of the documents begin, up to the two dots, if there are several prefixes; for blobs, their folder.",
)
@click.option(
    "--container", help="The container with the old blobs. By default that of the leases, if they are in blobs."
)
@ACCOUNT_URL
@click.option("--apply", is_flag=True, help="Write. Without it, only show what would change.")
@click.option("--force", is_flag=True, help="Also move back, and import leases that were exported with another feed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def import_leases(
    file: Path,
    input: str | None,
    pipeline: str,
    source: str,
    prefix: str | None,
    container: str | None,
    account_url: str | None,
    apply: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Take over the positions of other leases. Each is created, moved (a new generation), unchanged, or refused with a reason.

    INPUT holds JSON lines, or (not from Leasehold) one JSON array of documents; - is standard input. Without INPUT, the
    documents are read from the lease store itself, if it is in Cosmos DB, or from a container of blobs. If one is refused,
    nothing is written.
    """
    from leasehold.common.clock import BootClock
    from leasehold.service.group.import_sources import KINDS, Import
    from leasehold.service.group.migration import execute, mode_of, plan_import

    settings, text = settings_of(file), _read(input)
    if not settings.leases.is_shared and apply:
        fail("`leases: {type: memory}` ends with this command: use a persistent lease store")

    is_in_blobs = source in KINDS and text is None
    if not is_in_blobs and (container or account_url):
        fail(
            "--container and --account-url say where blobs are: leave them out with an INPUT, or another --from",
            code=USAGE,
        )

    async def run(view: View, keeper: Keeper) -> Report:
        blobs = _blobs_of(settings, container, account_url) if is_in_blobs else None
        try:
            return await run_import(view, keeper, blobs)
        finally:
            if blobs is not None:
                await blobs.close()

    async def run_import(view: View, keeper: Keeper, blobs: BlobSource | None) -> Report:
        order = Import(
            pipeline=view.pipelines[pipeline],
            source=cast("Source", source),
            text=text,
            blobs=blobs,
            prefix=prefix,
            mode=mode_of(view.pipelines[pipeline].feed),
            now_us=int(datetime.now(UTC).timestamp() * 1e6),
            force=force,
        )
        report = await plan_import(keeper, order, clock=BootClock(), say=lambda line: click.echo(line, err=True))
        return await execute(keeper, order, report) if apply else report

    report = read_offline(file, run, pipeline, writes=apply, heeds=False)
    with unread_is_fine():
        _print_report(report, apply, as_json)
    if report.problems:
        fail(*report.problems)
    if report.count("refused"):
        sys.exit(FAILED)


def _blobs_of(settings: Settings, container: str | None, account_url: str | None) -> BlobSource | None:
    """Raises StartFailed."""
    from leasehold.service.wiring.build import others_blobs_of

    return others_blobs_of(
        settings.leases,
        container=container,
        account_url=account_url,
        connection_string=None if account_url else os.environ.get(CONNECTION_STRING),
    )


def _print_report(report: Report, apply: bool, as_json: bool) -> None:
    from leasehold.service.cli.tables import change_fields, changes_table, screen_of

    if as_json:
        fields = {
            **report.counts,
            "written": len(report.done),
            "changes": [change_fields(each) for each in report.changes],
        }
        click.echo(json.dumps(fields, ensure_ascii=False))
        return
    screen_of(sys.stdout).print(changes_table(report.changes))
    click.echo(", ".join(f"{count} {kind}" for kind, count in report.counts.items()) + f": {_next(report, apply)}")


def _next(report: Report, apply: bool) -> str:
    if report.count("refused"):
        return "nothing is written as long as one is refused"
    if apply:
        return f"{len(report.done)} written"
    return "nothing was written; use --apply to write"


def _read(input: str | None) -> str | None:
    from leasehold.leases.import_.cosmos_import import INPUT_BYTES_MAX

    if input is None:
        return None
    try:
        with nullcontext(sys.stdin.buffer) if input == "-" else open(input, "rb") as stream:
            read = stream.read(INPUT_BYTES_MAX + 1)
        return read.decode("utf-8-sig")
    except OSError as error:
        fail(f"'{input}' cannot be read ({error.strerror}): name the file with the leases")
    except UnicodeDecodeError as error:
        fail(f"'{input}' is not UTF-8 (byte {error.start}): export it as UTF-8")


def _write(output: Path, text: str) -> None:
    """Write the file whole or not at all."""
    part = output.with_name(output.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, output)
    except OSError as error:
        fail(f"'{output}' cannot be written ({error.strerror}): name another file")


@click.command("close", context_settings=NAMES_MAY_BEGIN_WITH_A_DASH)
@FILE
@click.argument("pipeline")
@click.argument("partitions", metavar="[PARTITION]...", nargs=-1)
@click.option("--gone", "all_gone", is_flag=True, help="Close every lease whose partition the feed no longer lists.")
@click.option(
    "--skip-rest",
    is_flag=True,
    help="Also close leases with events left. Those events are never read.",
)
@click.option(
    "--forget",
    is_flag=True,
    help="Leave no tombstone, and remove those of closed leases. Hosts delete the document once the file has gone; a file that"
    " comes back under its name is read from the beginning.",
)
def close_leases(
    file: Path, pipeline: str, partitions: tuple[str, ...], all_gone: bool, skip_rest: bool, forget: bool
) -> None:
    """Close the leases of files that are done, so that you can archive the files. No host reads them any more.

    A lease with events left stays open. A closed lease stays in the list: if the file comes back under its name, hosts warn
    and do not read it again. `leases reset` opens the lease. An owner loses the lease at its next write. Each lease gets one
    line of output. The exit code is 1 if a lease could not be closed.
    """
    if bool(partitions) == all_gone:
        fail("name the partitions to close, or use --gone for all that the feed no longer lists", code=USAGE)

    async def close(view: View, keeper: Keeper) -> int:
        from leasehold.service.group.actions import list_partitions

        listed = await list_partitions(view.pipelines[pipeline])
        names = (
            await _find_gone(view, pipeline, listed, skip_rest, forget) if all_gone else list(dict.fromkeys(partitions))
        )
        failed = [name for name in names if not await _close(view, keeper, pipeline, name, listed, skip_rest, forget)]
        if all_gone and not names:
            click.echo(
                f"nothing to close: the feed of pipeline '{pipeline}' lists every partition that has an open lease"
            )
        return len(failed)

    if read_offline(file, close, pipeline):
        sys.exit(FAILED)


async def _find_gone(
    view: View, pipeline: str, listed: Sequence[Partition], skip_rest: bool, forget: bool
) -> Sequence[str]:
    """Raises NotNow if the feed lists nothing at all: a directory that is not mounted looks empty."""
    from leasehold.service.group.actions import forgettable, gone

    leases = [status.lease for status in (await view.read_group()).leases.values() if status.lease.pipeline == pipeline]
    names = gone(leases, view.pipelines[pipeline].feed, listed)
    if names and not listed and not skip_rest:
        raise NotNow(
            f"the feed of pipeline '{pipeline}' lists no partition at all, and"
            f" {counted(len(names), 'lease is', 'leases are')} open: is its directory mounted? If all files are done, add"
            " --skip-rest, or name them"
        )
    return [*names, *(forgettable(leases, listed) if forget else [])]


async def _close(
    view: View,
    keeper: Keeper,
    pipeline: str,
    partition: str,
    listed: Sequence[Partition],
    skip_rest: bool,
    forget: bool,
) -> bool:
    """Close one lease. Returns whether it is closed now; an error of one lease does not stop the others."""
    from leasehold.service.group.actions import cleared_after_s, close_lease, describe

    try:
        closed = await close_lease(
            keeper, view.pipelines[pipeline], partition, listed, skip_rest=skip_rest, forget=forget
        )
    except StoreMissing:
        why = f"pipeline '{pipeline}' has no lease '{partition}': `leasehold leases list` lists its leases"
    except InvalidDocument as error:
        why = str(advised(error, pipeline, partition))
    except (NotNow, StoreConflict, StoreAmbiguous) as error:
        why = str(error)
    else:
        with unread_is_fine():  # otherwise the leases after this one would stay open
            click.echo(describe(closed, cleared_after_s=cleared_after_s(keeper.timing)))
        return True
    click.echo(f"leasehold: {redacted(why)}", err=True)
    return False
