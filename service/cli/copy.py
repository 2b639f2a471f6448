"""The command `leasehold leases copy`; docs/migration.md walks through it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leasehold.leases.errors import StoreError
from leasehold.service.cli.common import USAGE, PathName, done, fail, settings_of, unread_is_fine, warn
from leasehold.service.errors import NotNow
from leasehold.service.texts import counted, redacted

if TYPE_CHECKING:
    from leasehold.leases.keeper import Keeper
    from leasehold.service.config.settings import Settings
    from leasehold.service.group.copying import CopyReport
    from leasehold.service.group.view import View

CALL_TIMEOUT_S = 60.0
"""No lease depends on how long a call takes."""
_YAML = PathName(path_type=Path, dir_okay=False)


@click.command("copy")
@click.option("--from", "old", type=_YAML, required=True, help="The configuration with the present lease store.")
@click.option("--to", "new", type=_YAML, required=True, help="The configuration with the new one: it must be empty.")
@click.option("--apply", is_flag=True, help="Copy. Without it, only show what would be copied.")
@click.option(
    "--cancel", is_flag=True, help="Give up an unfinished copy, so that hosts may run on the old lease store again."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def copy_leases(old: Path, new: Path, apply: bool, cancel: bool, as_json: bool) -> None:
    """Copy the leases of a stopped group into another lease store, with positions, epochs and pause orders.

    Both configurations name the same pipelines. Stop all hosts first: the command watches both stores, and refuses if one
    is alive. It can be interrupted, and run again. Until it is done, no host works on either store. Afterwards, no host
    works on the old one.
    """
    if apply and cancel:
        fail("--apply and --cancel exclude each other: use one of them", code=USAGE)
    before, after = settings_of(old), settings_of(new)
    _check(before, after, old, new)
    if cancel:
        names = done(_cancel(before))
        click.echo(
            f"given up: hosts may run {old} again. What was copied stays in {after.leases.place}: remove it, or name another"
            if names
            else "nothing to give up: no copy from there is under way"
        )
        return
    report = done(_copy(before, after, apply))
    with unread_is_fine():
        _print(report, apply, as_json, old, new)


def _check(before: Settings, after: Settings, old: Path, new: Path) -> None:
    for file, settings in ((old, before), (new, after)):
        if not settings.leases.is_shared:
            fail(f"{file}: `leases: {{type: memory}}` ends with this command: use a persistent lease store", code=USAGE)
    ours, theirs = ({each.name for each in settings.pipelines} for settings in (before, after))
    if ours != theirs:
        fail(
            f"{old} and {new} must have the same pipelines: {_names(ours ^ theirs)} in one of them only",
            code=USAGE,
        )


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))


async def _copy(before: Settings, after: Settings, apply: bool) -> CopyReport:
    from leasehold.common.clock import BootClock
    from leasehold.service.cli.offline_view import open_group
    from leasehold.service.group.copying import Place, copy_group, plan_copy
    from leasehold.service.telemetry import logs

    logs.hush(before.log)
    clock = BootClock()
    async with (
        open_group(before, warn=warn, call_timeout_s=CALL_TIMEOUT_S) as (_, source),
        open_group(after, creates=apply, warn=warn, call_timeout_s=CALL_TIMEOUT_S) as (view, target),
    ):
        await _require_same_pipelines(source, view)
        old, new = (
            Place(keeper, leases.place, leases.is_place_unique)
            for keeper, leases in ((source, before.leases), (target, after.leases))
        )
        names = [each.name for each in before.pipelines]
        replayed = {each.name for each in (*before.pipelines, *after.pipelines) if each.letters is not None}
        if not apply:
            return await plan_copy(old, new, names, replayed=replayed, clock=clock, say=_say)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            return await copy_group(
                old, new, names, replayed=replayed, copy=source.incarnation, at=at, clock=clock, say=_say
            )
        except StoreError as error:
            raise NotNow(f"the copy is not complete ({error}): run the command again") from error


async def _require_same_pipelines(source: Keeper, view: View) -> None:
    """Raises GroupMismatch if leases that are copied belong to another feed or sink than in the new configuration."""
    from leasehold.leases.bootstrap import Bootstrap

    for name, pipeline in view.pipelines.items():
        await Bootstrap(source, name, pipeline.identity).read_recorded()


async def _cancel(before: Settings) -> tuple[str, ...]:
    from leasehold.common.clock import BootClock
    from leasehold.service.cli.offline_view import open_group
    from leasehold.service.group.copying import Place, cancel_copy
    from leasehold.service.telemetry import logs

    logs.hush(before.log)
    async with open_group(before, warn=warn, call_timeout_s=CALL_TIMEOUT_S) as (_, source):
        names = [each.name for each in before.pipelines]
        return await cancel_copy(Place(source, before.leases.place), names, clock=BootClock())


def _say(line: str) -> None:
    click.echo(redacted(line), err=True)


def _print(report: CopyReport, apply: bool, as_json: bool, old: Path, new: Path) -> None:
    if as_json:
        pipelines = [{"pipeline": each.pipeline, "leases": each.leases, "left": each.step} for each in report.pipelines]
        fields = {"applied": apply, "written": report.written, "pipelines": pipelines}
        click.echo(json.dumps(fields, ensure_ascii=False))
        return
    for each in report.pipelines:
        click.echo(f"pipeline '{each.pipeline}': {counted(each.leases, 'lease')}{_STEPS[each.step]}")
    if report.is_done:
        click.echo(f"nothing to do: run {new}")
    elif apply:
        click.echo(f"{counted(report.written, 'document')} written: run {new}, and keep {old} from being started")
    else:
        click.echo("nothing was written; use --apply to copy")


_STEPS = {
    "copy": "",
    "continue": ", and some may have been copied already",
    "release": ", which were copied already",
    "nothing": ", which were copied already",
}
