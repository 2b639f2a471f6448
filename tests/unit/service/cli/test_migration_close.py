"""`leasehold leases close`, as people run it over files: what it closes, what it says, and its exit codes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from leasehold.leases.bootstrap import Identity, Info, encode_info, info_id
from leasehold.leases.document import decode_lease, encode_lease, lease_id, lease_prefix
from leasehold.leases.lease import Lease
from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.pipeline.connectors.files.feed import FilesFeed
from leasehold.service.cli.common import watched_output
from leasehold.service.cli.main import main

SETTINGS = """
leases: {path: state/leases.db}
pipelines:
  - name: letters
    feed: {type: files, path: "in/words-*.jsonl"}
    sink: {type: python, handler: "unit.service.cli.test_close:Handler"}
"""
NAMES = ("words-1.jsonl", "words-2.jsonl", "words-3.jsonl")


class Handler:
    async def __call__(self, batch: object) -> None: ...


class Place:
    """A folder with three files of three records. Of the first two all is delivered, of the third nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "in").mkdir()
        (folder / "letters.yaml").write_text(SETTINGS)
        for name in NAMES:
            self.file(name).write_text("".join(f'{{"n": {n}}}\n' for n in range(3)))
        asyncio.run(self._keep())

    async def _keep(self) -> None:
        feed, store = FilesFeed(str(self.folder / "in" / "words-*.jsonl")), SqliteStore(self.folder / "state/leases.db")
        for name in NAMES:
            place = None if name == NAMES[2] else await feed.latest(name)
            lease = Lease(pipeline="letters", partition=name, continuation=place)
            await store.create(lease_id(*lease.key), encode_lease(lease))
        info = Info(identity=Identity(feed.identity, "python:Handler"), complete=True)
        await store.create(info_id("letters"), encode_info(info))
        await feed.close()
        await store.close()

    def file(self, name: str) -> Path:
        return self.folder / "in" / name

    def move_away(self, names: Iterable[str]) -> None:
        for name in names:
            self.file(name).rename(self.folder / name)

    def __call__(self, *arguments: str) -> Result:
        file = str(self.folder / "letters.yaml")
        result = CliRunner().invoke(main, [file if each == "FILE" else each for each in arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    def close(self, *arguments: str) -> Result:
        return self("leases", "close", "FILE", "letters", *arguments)

    @property
    def leases(self) -> dict[str, Lease]:
        async def read() -> list[Lease]:
            store = SqliteStore(self.folder / "state/leases.db")
            try:
                return [decode_lease(each.id, each.body) for each in await store.list(lease_prefix("letters"))]
            finally:
                await store.close()

        return {lease.partition: lease for lease in asyncio.run(read())}

    @property
    def closed(self) -> dict[str, bool]:
        """By the closed leases' partitions: whether they have a tombstone."""
        return {name: lease.tombstone for name, lease in self.leases.items() if lease.closed}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_file_that_is_delivered_is_closed_in_one_line(place: Place) -> None:
    done = place.close(NAMES[0])
    assert done.exit_code == 0, done.stderr
    at = place.leases[NAMES[0]].continuation
    assert done.stdout == (
        f"lease 'words-1.jsonl' of pipeline 'letters' closed at '{at}': 0 events left; it may be archived\n"
    )
    assert place.closed == {NAMES[0]: True}
    again = place.close(NAMES[0])
    assert (again.exit_code, again.stdout) == (
        0,
        f"lease 'words-1.jsonl' of pipeline 'letters' was closed already, at '{at}'\n",
    )


def test_several_are_closed_one_by_one_and_what_stays_open_is_exit_code_1(place: Place) -> None:
    done = place.close(NAMES[0], "nope.jsonl", NAMES[2], NAMES[1], NAMES[0])
    assert done.exit_code == 1
    assert [line.split("'")[1] for line in done.stdout.splitlines()] == [NAMES[0], NAMES[1]]
    missing, open_ = done.stderr.splitlines()
    assert missing == (
        "leasehold: pipeline 'letters' has no lease 'nope.jsonl': `leasehold leases list` lists its leases"
    )
    assert "words-3.jsonl' of pipeline 'letters' stays open: 3 events are left. Wait until the lag is 0" in open_
    assert place.closed == {NAMES[0]: True, NAMES[1]: True}


def test_all_are_closed_also_if_the_reader_of_the_lines_has_left(place: Place) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    arguments = ["leases", "close", str(place.folder / "letters.yaml"), "letters", NAMES[0], NAMES[1]]
    with open(writer, "w") as unread, redirect_stdout(unread), watched_output(), pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert place.closed == {NAMES[0]: True, NAMES[1]: True}


def test_a_rest_is_skipped_where_that_is_said(place: Place) -> None:
    done = place.close(NAMES[2], "--skip-rest")
    assert (done.exit_code, "closed at the feed's beginning: 3 events are skipped" in done.stdout) == (0, True)


def test_a_record_without_a_line_end_is_left_and_named(place: Place) -> None:
    with place.file(NAMES[0]).open("a") as file:
        file.write('{"n": 3}')
    done = place.close(NAMES[0])
    assert done.exit_code == 1
    assert "1 event is left (" in done.stderr
    assert "line 4" in done.stderr


def test_gone_closes_all_that_were_moved_away_and_nothing_else(place: Place) -> None:
    place.move_away(NAMES[1:])
    done = place.close("--gone")
    assert done.exit_code == 0, done.stderr
    assert [line.split("'")[1] for line in done.stdout.splitlines()] == [NAMES[1], NAMES[2]]
    assert all("so how many events were left is unknown" in line for line in done.stdout.splitlines())
    assert place.closed == {NAMES[1]: True, NAMES[2]: True}
    assert place.close("--gone").stdout.startswith("nothing to close: ")


def test_a_directory_that_looks_empty_does_not_count_as_done(place: Place) -> None:
    place.move_away(NAMES)
    done = place.close("--gone")
    assert done.exit_code == 1
    assert "lists no partition at all, and 3 leases are open: is its directory mounted?" in done.stderr
    assert place.closed == {}
    assert place.close("--gone", "--skip-rest").exit_code == 0
    assert len(place.closed) == 3


def test_forget_leaves_no_tombstone_and_takes_those_of_gone_files_away(place: Place) -> None:
    place.close(NAMES[0], NAMES[1])
    place.move_away([NAMES[0], NAMES[2]])
    done = place.close("--gone", "--forget")
    assert done.exit_code == 0, done.stderr
    assert place.closed == {NAMES[0]: False, NAMES[1]: True, NAMES[2]: False}  # the second one is still there
    assert all("hosts delete its document 600 s after" in line for line in done.stdout.splitlines())


@pytest.mark.parametrize("arguments", [(), ("words-1.jsonl", "--gone")])
def test_partitions_or_gone_have_to_be_said(place: Place, arguments: tuple[str, ...]) -> None:
    done = place.close(*arguments)
    assert (done.exit_code, "or use --gone" in done.stderr) == (2, True)


def test_a_closed_lease_is_shown_as_closed_and_has_no_lag(place: Place) -> None:
    place.move_away([NAMES[0]])
    assert place.close(NAMES[0]).exit_code == 0
    rows = json.loads(place("leases", "list", "FILE", "--json").stdout)
    assert {row["partition"] for row in rows if row["state"] == "closed"} == {NAMES[0]}
    lag = json.loads(place("lag", "FILE", "--json").stdout)
    assert (lag["events"], lag["unknown"]) == (3, 0)
    assert [row["partition"] for row in lag["partitions"]] == [NAMES[1], NAMES[2]]


def test_lag_and_leases_name_the_command_that_closes_the_lease_of_a_file_that_is_gone(place: Place) -> None:
    place.move_away([NAMES[0]])
    for command in (("lag",), ("leases", "list")):
        *_, reason = place(*command, "FILE").stdout.splitlines()
        assert reason.startswith(
            "pipeline 'letters', partition 'words-1.jsonl' cannot be read: no file 'words-1.jsonl' matches"
        )
        assert reason.endswith("close its lease: `leasehold leases close FILE letters words-1.jsonl`")
    rows = json.loads(place("leases", "list", "FILE", "--json").stdout)
    assert [[each["kind"] for each in row["held_up"]] for row in rows] == [["feed_error"], [], []]
    shown = json.loads(place("leases", "show", "FILE", "letters", NAMES[0]).stdout)
    assert shown == rows[0]


def test_one_lease_is_counted_as_one(place: Place) -> None:
    place.close(NAMES[0], NAMES[1])
    place.move_away(NAMES)
    assert "lists no partition at all, and 1 lease is open: is" in place.close("--gone").stderr


def test_a_closed_lease_is_opened_by_a_reset_that_was_agreed_to(place: Place) -> None:
    place.close(NAMES[0])
    told = place("leases", "reset", "FILE", "letters", NAMES[0], "--to", "earliest")
    assert told.exit_code == 2
    assert "the lease is closed: the reset opens it" in told.stderr
    assert place.closed == {NAMES[0]: True}
    assert place("leases", "reset", "FILE", "letters", NAMES[0], "--to", "earliest", "--yes").exit_code == 0
    assert place.closed == {}


@pytest.mark.parametrize(
    ("name", "to", "what", "is_counted_twice"),
    [
        (NAMES[0], "earliest", "to the feed's beginning: 3 events are delivered again", True),
        (NAMES[2], "latest", ": 3 events are skipped", False),
        (NAMES[0], "latest", ": no event is delivered again, none is skipped", False),
    ],
)
def test_a_reset_counts_what_is_delivered_again_or_skipped(
    place: Place, name: str, to: str, what: str, is_counted_twice: bool
) -> None:
    told = place("leases", "reset", "FILE", "letters", name, "--to", to)
    assert told.exit_code == 2
    assert what in told.stderr
    assert ("sums count them twice" in told.stderr) == is_counted_twice
