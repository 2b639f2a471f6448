"""The command `leasehold`. Exit codes: 0 done, 1 failed, 2 bad usage or configuration, 130 interrupted, 141 the
reader of standard output left.

Each command imports what only it needs: importing Spark, the REST API and tables takes longer than most commands run.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from leasehold.common.distribution import NAME
from leasehold.leases.errors import InvalidDocument, StoreMissing
from leasehold.leases.lease import LeaseKey
from leasehold.service.cli.common import (
    FAILED,
    FILE,
    INTERRUPTED,
    NAMES_MAY_BEGIN_WITH_A_DASH,
    USAGE,
    Interruptible,
    PathName,
    done,
    fail,
    log_of,
    pipeline_in,
    read_offline,
    settings_of,
    unread_is_fine,
)
from leasehold.service.cli.copy import copy_leases
from leasehold.service.cli.dead_letters import dead_letters
from leasehold.service.cli.demo.failing import FailureName
from leasehold.service.cli.files import files
from leasehold.service.cli.log import log
from leasehold.service.cli.migration import close_leases, export_leases, import_leases, reset_leases
from leasehold.service.cli.run_host import run_host
from leasehold.service.cli.test import run_tests
from leasehold.service.errors import StartFailed
from leasehold.service.texts import counted, redacted

if TYPE_CHECKING:
    from leasehold.leases.keeper import Keeper
    from leasehold.service.cli.offline_view import Read
    from leasehold.service.cli.probe_services import ServiceOptions, Targets
    from leasehold.service.config.settings import Settings
    from leasehold.service.group.status import GroupStatus, LeaseStatus
    from leasehold.service.group.view import View
    from leasehold.service.lag.measurement import Lag
    from leasehold.service.probing.report import ProbeReport


@click.group(cls=Interruptible, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=NAME)
def main() -> None:
    """Leasehold: partitions of a feed, shared by hosts, through Spark micro-batches, delivered exactly once."""


@main.command()
@FILE
@click.option(
    "--until-idle",
    is_flag=True,
    help="Stop when the whole group has nothing left to do: with exit code 0, or 1 if a partition cannot continue.",
)
def run(file: Path, until_idle: bool) -> None:
    """Process the pipelines of FILE until Ctrl-C or SIGTERM.

    Run as many hosts as you like: hosts on one FILE share its partitions. When it stops, each host logs how many events and rows
    it has delivered for each pipeline. With --until-idle it also prints them, unless the log is JSON.
    """
    run_host(settings_of(file), until_idle=until_idle)


@main.command()
@FILE
@click.option("--probe", is_flag=True, help="Also connect: lease store, feeds, sinks, and Spark on every transform.")
@click.option(
    "--service",
    is_flag=True,
    help="With --probe: ask Cosmos DB, Event Hubs and Blob Storage whether they behave as Leasehold assumes.",
)
@click.option(
    "--hub",
    help="With --service: an event hub of the namespace that nothing else uses. Events are published to it.",
)
@click.option("--partition", default="0", show_default=True, help="With --hub: its partition.")
@click.option("--consumer-group", default="$Default", show_default=True, help="With --hub: its consumer group.")
@click.option(
    "--create",
    is_flag=True,
    help="With --service: create a container in the database of FILE, and blobs next to its leases, and remove them at the end.",
)
@click.option(
    "--report",
    type=PathName(path_type=Path, dir_okay=False),
    help="With --service: write the answers and their evidence to this file, JSON if it ends in .json, else Markdown.",
)
@click.option("--names", is_flag=True, help="With --report: leave the names of accounts, databases and hubs in it.")
def check(
    file: Path,
    probe: bool,
    service: bool,
    hub: str | None,
    partition: str,
    consumer_group: str,
    create: bool,
    report: Path | None,
    names: bool,
) -> None:
    """Report everything that is wrong with the settings in FILE, at once.

    With --probe, also connect to everything that the file names, and let Spark check schemas and SQL. Sinks create what they
    need, and no events are processed.

    With --probe --service, also ask Cosmos DB and Blob Storage (--create) and Event Hubs (--hub) the questions of
    docs/guarantees.md. Before it begins, it prints what that costs.
    """
    if service and not probe:
        raise click.UsageError("--service has no effect without --probe: add it")
    if not service and (hub is not None or create or report is not None or names):
        raise click.UsageError("--hub, --create, --report and --names have no effect without --service: add it")
    from leasehold.service.telemetry.signals import lacking
    from leasehold.service.wiring.problems import find_problems

    settings = settings_of(file)
    problems = lacking(settings.telemetry)
    problems += [] if probe else done(find_problems(settings))  # a probe makes every part, and reports each
    if problems:
        fail(*problems, code=USAGE)
    click.echo(f"settings: fine, {counted(len(settings.pipelines), 'pipeline')}")
    if probe:
        from leasehold.service.cli.probe import run_probe
        from leasehold.service.cli.probe_services import ServiceOptions

        log_of(settings, "check")
        is_fine = done(run_probe(settings, click.echo))
        if service:
            options = ServiceOptions(hub=hub, partition=partition, consumer_group=consumer_group, creates=create)
            _ask_services(settings, options, report, names=names)
        if not is_fine:
            sys.exit(USAGE)
    else:
        click.echo("schemas, SQL and connections were not checked (use --probe)")


def _ask_services(settings: Settings, options: ServiceOptions, file: Path | None, *, names: bool) -> None:
    """Exits with an error unless all answers are among those that Leasehold knows."""
    from leasehold.service.cli.probe_services import ask_services, targets_of, write_report
    from leasehold.service.probing.report import summary

    if file is not None and not file.absolute().parent.is_dir():
        fail(f"the report cannot be written to '{file}' (there is no such directory): name another file", code=USAGE)

    async def ask() -> tuple[ProbeReport | None, Targets]:
        targets = targets_of(settings, options, click.echo)
        return await ask_services(targets, options, click.echo), targets

    report, targets = done(ask())
    if report is None:
        sys.exit(INTERRUPTED)
    click.echo(summary(report))
    if file is not None:
        try:
            write_report(report if names else report.without(targets.names), file)
        except StartFailed as error:
            fail(str(error))
        click.echo(f"report: {file}")
    if not report.is_fine:
        sys.exit(FAILED)


@main.group()
def leases() -> None:
    """Show, release, close, reset, export, import and copy leases.

    To pause or resume a pipeline, use the REST API of a running host: POST /api/pipelines/NAME/pause, or .../resume.
    """


@leases.command("list")
@FILE
@click.option("--pipeline", help="Only this one.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array on standard output.")
def list_leases(file: Path, pipeline: str | None, as_json: bool) -> None:
    """Show who owns which partition, how far it got, and why it stands still, if it does.

    Only hosts know whether an owner is still alive, because they watch it: ask one at /api/leases. Hosts report why a partition
    fails; if no host runs, this command asks the feeds. For a lease that cannot be read it prints the error and a remedy.
    """
    from leasehold.service.cli.tables import lease_fields, leases_table, reasons, screen_of, unreadable_fields
    from leasehold.service.group.status import Standstill, failures_of, unlisted_failures

    async def read(view: View, keeper: Keeper) -> tuple[GroupStatus, dict[LeaseKey, tuple[Standstill, ...]]]:
        return await view.read_standstills()

    group, standing = read_offline(file, read, pipeline)
    found = [status for status in group.leases.values() if pipeline in (None, status.lease.pipeline)]
    unreadable = {key: why for key, why in group.unreadable.items() if pipeline in (None, key.pipeline)}
    held_up = {key: each for key, each in standing.items() if pipeline in (None, key.pipeline)}
    if as_json:
        failures = failures_of(group)
        rows = [lease_fields(each, failures.get(each.lease.key), held_up.get(each.lease.key, ())) for each in found]
        rows += [unreadable_fields(key, why) for key, why in unreadable.items()]
        click.echo(json.dumps(rows, ensure_ascii=False))
        return
    screen = screen_of(sys.stdout)
    screen.print(leases_table(found, unreadable, held_up))
    for why in (*unreadable.values(), *reasons(held_up), *unlisted_failures(group)):
        click.echo(redacted(why))


@leases.command("show", context_settings=NAMES_MAY_BEGIN_WITH_A_DASH)
@FILE
@click.argument("pipeline")
@click.argument("partition")
def show_lease(file: Path, pipeline: str, partition: str) -> None:
    """Print one lease in full, as JSON."""
    from leasehold.service.cli.tables import lease_fields
    from leasehold.service.group.status import Standstill, failures_of

    async def read(
        view: View, keeper: Keeper
    ) -> tuple[LeaseStatus, GroupStatus, dict[LeaseKey, tuple[Standstill, ...]]]:
        return await _one(pipeline, partition)(view, keeper), *await view.read_standstills()

    found, group, standing = read_offline(file, read, pipeline)
    key = found.lease.key
    fields = lease_fields(found, failures_of(group).get(key), standing.get(key, ()))
    click.echo(json.dumps(fields, ensure_ascii=False, indent=2))


@leases.command("release", context_settings=NAMES_MAY_BEGIN_WITH_A_DASH)
@FILE
@click.argument("pipeline")
@click.argument("partition")
def release_lease(file: Path, pipeline: str, partition: str) -> None:
    """Take a lease from its owner. The lease keeps its position, and any host may take it next, even the same one.

    The owner notices within three seconds.
    A sink that keeps its position refuses what the owner still sends.
    """

    from leasehold.service.group.actions import release_lease

    async def release(view: View, keeper: Keeper) -> str:
        await _one(pipeline, partition)(view, keeper)
        change = await release_lease(keeper, pipeline, partition)
        lease = change.before.lease
        if not change.is_change:
            return f"lease '{partition}' of pipeline '{pipeline}' has no owner: nothing to release"
        return f"lease '{partition}' of pipeline '{pipeline}' released by '{lease.owner}' (epoch {lease.epoch})"

    change = read_offline(file, release, pipeline)
    with unread_is_fine():
        click.echo(change)


def _emulate() -> click.Command:
    """The command of the package leasehold-emulators, or one that names the extra to install."""
    try:
        from leasehold_emulators.command import emulate
    except ModuleNotFoundError as error:
        if error.name != "leasehold_emulators":
            raise
    else:
        return emulate

    @click.command("emulate", add_help_option=False, context_settings={"ignore_unknown_options": True})
    @click.argument("arguments", nargs=-1)
    def missing(arguments: tuple[str, ...]) -> None:
        """Run an emulator of an Azure service on this machine, for development and tests (extra `emulators`)."""
        fail("the emulators are a package of their own: pip install 'leasehold-processor[emulators]'", code=USAGE)

    return missing


for command in (close_leases, reset_leases, export_leases, import_leases, copy_leases):
    leases.add_command(command)
main.add_command(files)
main.add_command(log)
main.add_command(dead_letters)
main.add_command(run_tests)
main.add_command(_emulate())


@main.command()
@FILE
@click.option("--pipeline", help="Only this one.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def lag(file: Path, pipeline: str | None, as_json: bool) -> None:
    """Show how many events each partition is behind, how old its oldest is, and why it stands still, if it does."""
    from leasehold.service.cli.tables import held_up_fields, lag_fields, lag_table, reasons, screen_of
    from leasehold.service.group.status import failures_of, standstills, unlisted_failures

    async def measure(view: View, keeper: Keeper) -> tuple[Lag, GroupStatus]:
        found = await view.read_lag()
        return found if pipeline is None else found.of(pipeline), await view.read_group()

    found, group = read_offline(file, measure, pipeline)
    failures = failures_of(group)
    held_up = {key: each for key, each in standstills(group, found.errors).items() if pipeline in (None, key.pipeline)}
    unreadable = [
        f"pipeline '{name}', partition '{partition}': {why}"
        for (name, partition), why in group.unreadable.items()
        if pipeline in (None, name)
    ]
    if as_json:
        partitions = [
            {**lag_fields(one), **held_up_fields(failures.get(one.key), held_up.get(one.key, ()))}
            for one in found.partitions
        ]
        events = found.events if found.is_known else None
        fields = {
            "events": events,
            "seconds": found.seconds,
            "unknown": found.unknown,
            "partitions": partitions,
        }
        click.echo(json.dumps(fields, ensure_ascii=False))
        return
    screen_of(sys.stdout).print(lag_table(found))
    for why in (*unreadable, *reasons(held_up), *unlisted_failures(group)):
        click.echo(redacted(why))


@main.command(context_settings=NAMES_MAY_BEGIN_WITH_A_DASH)
@FILE
@click.argument("pipeline")
@click.argument("partition")
@click.option("--input", "side", flag_value="input", help="Only events, as the owner reads them.")
@click.option("--output", "side", flag_value="output", help="Only rows, once they are delivered.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="End after this many rows."
)
@click.option("--seconds", type=click.FloatRange(0, 300), default=60, show_default=True, help="End after this long.")
@click.option(
    "--rows-per-s",
    type=click.IntRange(1, 100),
    default=10,
    show_default=True,
    help="Show at most this many per second of each side.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.option("--url", help="The API of the owner. By default that of a host on this machine, according to FILE.")
@click.option(
    "--token-file",
    type=PathName(path_type=Path, dir_okay=False),
    help="A file with an operator's token in its first line. By default `api.operators` of FILE.",
)
def tap(
    file: Path,
    pipeline: str,
    partition: str,
    side: str | None,
    limit: int,
    seconds: float,
    rows_per_s: int,
    as_json: bool,
    url: str | None,
    token_file: Path | None,
) -> None:
    """Show samples of what the owner of a partition reads and delivers, live and masked, until Ctrl-C.

    Taps are off unless FILE has `api.tap_mask`. They need an operator's token, and the host logs each of them.
    Only the owner of the lease can answer: on Kubernetes, run this command in its pod with `kubectl exec`.
    """
    from leasehold.service.cli.tap import TapRequest, show_tap

    settings = settings_of(file)
    pipeline_in(settings, file, pipeline)
    wanted = TapRequest(
        pipeline=pipeline,
        partition=partition,
        side=side or "both",
        limit=limit,
        seconds=seconds,
        rows_per_s=rows_per_s,
    )
    show_tap(settings.api, wanted, as_json=as_json, url=url, token_file=token_file)


@main.command("demo")
@click.option("--dir", "directory", type=PathName(path_type=Path, file_okay=False), help="Keep the state here.")
@click.option(
    "--transactions",
    type=PathName(path_type=Path, dir_okay=False),
    help="A CSV file of your own: transaction_id,account,kind,amount,occurred_at.",
)
@click.option(
    "--fail",
    type=click.Choice(get_args(FailureName)),
    help="Show a failure and the recovery: one host of the bank is killed, or is stopped until it has lost its partitions.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, and nothing else there.")
def run_demo(directory: Path | None, transactions: Path | None, fail: FailureName | None, as_json: bool) -> None:
    """Run a bank, end to end: files, a log, Spark and PostgreSQL, all on this machine. Its balances are checked."""
    from leasehold.service.cli.demo.bank import DemoOptions, run_demo

    options = DemoOptions(directory=directory, transactions=transactions, as_json=as_json, fail=fail)
    result = done(run_demo(options))
    sys.exit(0 if result.matches else FAILED)


@main.command("postgres")
@click.argument("directory", type=PathName(path_type=Path, file_okay=False))
@click.option("--query", "sql", help="Instead, run this SQL with psql, print the result, and exit.")
def run_postgres(directory: Path, sql: str | None) -> None:
    """Run a PostgreSQL for trials in DIRECTORY until Ctrl-C, and print the DSN to connect with.

    DIRECTORY is created if it is missing, and its data stays there. Use it only for trials and for the database of
    `leasehold demo`: every user of this machine who can reach its socket can log in without a password.
    """
    from leasehold.service.cli.demo.postgres import query, serve
    from leasehold.service.cli.run import stopping

    async def serve_until_stopped() -> None:
        stop = asyncio.Event()
        with stopping(stop.set):
            await serve(directory, stop, click.echo)

    if sql is None:
        done(serve_until_stopped())
    else:
        sys.exit(done(query(directory, sql)))


def _one(pipeline: str, partition: str) -> Read[LeaseStatus]:
    async def read(view: View, keeper: Keeper) -> LeaseStatus:
        group = await view.read_group()
        key = LeaseKey(pipeline, partition)
        if (why := group.unreadable.get(key)) is not None:
            raise InvalidDocument(why)
        found = group.leases.get(key)
        if found is None:
            raise StoreMissing(
                f"pipeline '{pipeline}' has no lease '{partition}': `leasehold leases list` lists its leases"
            )
        return found

    return read
