"""`leasehold dead-letters`: lists events that could not be processed, and why; prints one in full; replays or discards them."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leasehold.service.cli.common import (
    FILE,
    NAMES_MAY_BEGIN_WITH_A_DASH,
    USAGE,
    done,
    fail,
    is_at_a_terminal,
    log_of,
    named,
    pipeline_in,
    settings_of,
    unread_is_fine,
)
from leasehold.service.texts import counted, redacted

if TYPE_CHECKING:
    from leasehold.pipeline.dead_letters import LetterBox
    from leasehold.pipeline.dead_letters.settled import Judged
    from leasehold.service.config.pipeline import Pipeline
    from leasehold.service.config.settings import Settings
    from leasehold.service.lag.backlog import Backlog

PARTITION = click.option("--partition", help="Only this one.")


@click.group("dead-letters")
def dead_letters() -> None:
    """Look at the events that could not be processed, and replay or discard them."""


@dead_letters.command("list", context_settings=NAMES_MAY_BEGIN_WITH_A_DASH)
@FILE
@click.argument("pipeline")
@PARTITION
@click.option("--open", "open_only", is_flag=True, help="Only those that still need attention.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per letter on standard output.")
def list_letters(file: Path, pipeline: str, partition: str | None, open_only: bool, as_json: bool) -> None:
    """List all dead letters, in the order in which they were written, including replayed ones.

    A letter is `open` until a replay has processed it. It is `replayed` if its event went through or was discarded, and `failed
    again`, with the number of the new letter, if its event became a dead letter again. Its state is `unknown` if the leases of
    the replay, or its sink, cannot be read.
    """
    from leasehold.service.cli.tables import letters_table, screen_of

    found = _read(file, pipeline, partition)
    if open_only:
        found = [one for one in found if one.state in ("open", "unknown")]
    if as_json:
        for one in found:
            click.echo(json.dumps(_letter_fields(one), ensure_ascii=False))
        return
    screen_of(sys.stdout).print(letters_table(found))


@dead_letters.command("show", context_settings=NAMES_MAY_BEGIN_WITH_A_DASH)
@FILE
@click.argument("pipeline")
@click.argument("partition")
@click.argument("number", type=int)
def show_letter(file: Path, pipeline: str, partition: str, number: int) -> None:
    """Print one dead letter in full, as JSON. NUMBER is its number in the output of `list`."""
    found = [one for one in _read(file, pipeline, partition) if one.kept.number == number]
    if not found:
        fail(
            f"pipeline '{pipeline}' has no dead letter {number} of partition '{partition}': `list` shows the existing ones"
        )
    click.echo(json.dumps(_letter_fields(found[0]), ensure_ascii=False, indent=2))


@dead_letters.command("replay", context_settings=NAMES_MAY_BEGIN_WITH_A_DASH)
@FILE
@click.argument("pipeline")
@PARTITION
def replay(file: Path, pipeline: str, partition: str | None) -> None:
    """Send the events of all dead letters that were not replayed yet through the pipeline, as FILE has it now.

    Correct the transform first. What fails again becomes a dead letter again. Hosts may run meanwhile. The exit code is 1 if
    something is left.
    """
    from leasehold.service.cli.replay import check_pipeline_not_moved, run_replay

    settings, one = _pipeline(file, pipeline)
    done(check_pipeline_not_moved(settings, one))
    if not done(_may_have_unread(settings, one, partition)):
        click.echo(f"pipeline '{pipeline}' has no open dead letters: nothing to replay")
        return
    with named(settings, role="-replay") as host:
        sent, again, last = done(run_replay(settings, one, partition, host=host, log=log_of(settings, host)))
    with unread_is_fine():
        click.echo(
            f"{counted(sent, 'dead letter')} of pipeline '{pipeline}' replayed: {sent - again} processed, {again} dead again"
        )
    _fail_if_left(last)


@dead_letters.command("discard", context_settings=NAMES_MAY_BEGIN_WITH_A_DASH)
@FILE
@click.argument("pipeline")
@PARTITION
@click.option("--yes", is_flag=True, help="Do not ask for confirmation. Required without a terminal.")
def discard(file: Path, pipeline: str, partition: str | None, yes: bool) -> None:
    """Give up all open dead letters of a pipeline, or of one partition: no replay sends their events.

    Replay first what you can still process: only the letters that failed again are open then. The command lists the letters
    that it discards, and asks for confirmation. Later letters stay open. Discarded letters stay in their place and in the list.
    """
    from leasehold.service.cli.replay import check_pipeline_not_moved, run_replay
    from leasehold.service.cli.tables import letters_table, screen_of

    settings, one = _pipeline(file, pipeline)
    done(check_pipeline_not_moved(settings, one))
    ends, found = _read_until(file, pipeline, partition)
    given_up = [letter for letter in found if letter.state == "open"]
    if any(letter.state == "unknown" for letter in found):
        fail("nothing was discarded: it is unknown which dead letters are open")
    if not given_up:
        click.echo(f"pipeline '{pipeline}' has no open dead letters: nothing to discard")
        return
    screen_of(sys.stderr).print(letters_table(given_up))
    count = counted(len(given_up), "dead letter")
    if not yes:
        if not is_at_a_terminal():
            fail(f"nothing was changed: to discard {count}, add --yes", code=USAGE)
        if not click.confirm(f"Discard {count}?", err=True):
            fail("nothing was changed")
    with named(settings, role="-replay") as host:
        _, _, last = done(
            run_replay(settings, one, partition, host=host, log=log_of(settings, host), discarded_to=ends)
        )
    _fail_if_left(last)
    with unread_is_fine():
        click.echo(f"{count} of pipeline '{pipeline}' discarded")


def _fail_if_left(last: Backlog | None) -> None:
    """last: as `leasehold.service.cli.replay.run_replay` returns it."""
    if last is None or last.failed:
        fail(*(f"partition '{key.partition}': {why}" for key, why in sorted((last.failed if last else {}).items())))


def _read(file: Path, pipeline: str, partition: str | None) -> list[Judged]:
    """The letters. Problems that leave states unknown are printed on standard error."""
    return _read_until(file, pipeline, partition)[1]


def _read_until(file: Path, pipeline: str, partition: str | None) -> tuple[dict[str, str | None], list[Judged]]:
    """By partition, a position such that all letters up to it are among those returned; and the letters."""
    from leasehold.pipeline.dead_letters.box import read_kept
    from leasehold.pipeline.dead_letters.settled import judge
    from leasehold.service.cli.replayed import read_replayed
    from leasehold.service.telemetry import logs

    settings, one = _pipeline(file, pipeline)
    logs.hush(settings.log)

    async def read(box: LetterBox) -> tuple[dict[str, str | None], list[Judged], list[str]]:
        feed = box.by_partition or box.feed
        ends = {each.name: await feed.latest(each.name) for each in await feed.partitions()}
        # The position first: letters of events that failed again below it are then among those that are read.
        replayed = await read_replayed(settings, one, feed.compare)
        letters = [kept async for kept in read_kept(box, pipeline, partition=partition)]
        return ends, *await judge(box, pipeline, letters, replayed)

    async def read_states() -> tuple[dict[str, str | None], list[Judged], list[str]]:
        box = _box_of(settings, one)
        try:
            return await read(box)
        finally:
            await box.close()

    ends, found, problems = done(read_states())
    for why in problems:
        click.echo(f"leasehold: the state of dead letters is unknown: {redacted(why)}", err=True)
    return ends, found


async def _may_have_unread(settings: Settings, pipeline: Pipeline, partition: str | None) -> bool:
    """Whether a replay could find a letter. Needs no Spark."""
    from leasehold.pipeline.errors import FeedError
    from leasehold.service.cli.replayed import read_replayed

    box = _box_of(settings, pipeline)
    feed = box.by_partition or box.feed
    try:
        names = [each.name for each in await feed.partitions() if partition in (None, each.name)]
        replayed = await read_replayed(settings, pipeline, feed.compare)
        if replayed.everything is not None or replayed.unknown:
            return True
        return any([await feed.lag(name, replayed.positions.get(name)) for name in names])
    except FeedError:
        return True  # the replay reports it
    finally:
        await box.close()


def _box_of(settings: Settings, pipeline: Pipeline) -> LetterBox:
    """Raises ValueError."""
    box = pipeline.make_box(settings.leases.timing)
    assert box is not None, "a pipeline with dead letters has a box"
    return box


def _pipeline(file: Path, pipeline: str) -> tuple[Settings, Pipeline]:
    settings = settings_of(file)
    found = pipeline_in(settings, file, pipeline)
    if found.letters is None:
        fail(f"pipeline '{pipeline}' of {file} keeps no dead letters: it has no `on_error: dead_letter`", code=USAGE)
    return settings, found


def _letter_fields(one: Judged) -> dict[str, Any]:
    """The body as text if it is text, else in base64. failed_again_as: the number of the letter that stands for it."""
    from leasehold.service.cli.tables import body_fields

    letter = dataclasses.asdict(one.kept.letter)
    body = body_fields(letter.pop("body"))
    return {"number": one.kept.number, "state": one.state, "failed_again_as": one.again, **letter, **body}
