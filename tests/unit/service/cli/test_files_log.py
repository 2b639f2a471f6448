"""`leasehold log read`: the events of the log that a pipeline writes or reads, for people and for programs."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from leasehold.leases.document import encode_lease, lease_id
from leasehold.leases.lease import Lease
from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.pipeline.connectors.log import append
from leasehold.pipeline.connectors.log.partition_file import BLOCK_SCHEMA
from leasehold.pipeline.connectors.log.store import Log, Retention
from leasehold.service.cli.main import main

SETTINGS = """
pipelines:
  - {name: writes, feed: {type: log, path: other}, sink: {type: log, path: log}}
  - {name: reads, feed: {type: log, path: log}, sink: {type: files, path: out}}
  - {name: files, feed: {type: files, path: "*.csv"}, sink: {type: files, path: out}}
  - {name: rows, feed: {type: files, path: "*.csv"}, sink: {type: postgres, dsn: "host=nowhere", table: rows}}
"""


class Commands:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        (folder / "bank.yaml").write_text(SETTINGS)

    def __call__(self, *arguments: str, command: str = "log read") -> Result:
        words = [*command.split(), str(self.folder / "bank.yaml"), *arguments]
        result = CliRunner().invoke(main, words)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    return Commands(tmp_path)


def append_events(log: Path, partition: str, *events: dict[str, object], now: datetime | None = None) -> None:
    opened = Log(log, now=lambda: now or datetime.now(UTC))
    opened.prepare()
    opened.partition(partition, new=True).append(pa.Table.from_pylist(list(events), schema=BLOCK_SCHEMA))
    opened.close()


@pytest.mark.parametrize("pipeline", ["writes", "reads"])
def test_the_log_that_a_pipeline_writes_or_else_reads_is_printed_a_line_an_event(
    commands: Commands, pipeline: str
) -> None:
    append(commands.folder / "other", "p", ["not this one"])
    append(commands.log, "b", ["three"])
    append(commands.log, "a", ["one", "two"], keys=["k", None])
    result = commands(pipeline)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "a\t0\tk\tone\na\t1\t-\ttwo\nb\t0\t-\tthree\n"


def test_a_line_stays_a_line_whatever_is_in_the_event(commands: Commands) -> None:
    append(
        commands.log, "a", [b"\xff\x00", "two\nlines\x1b[2J", None, "", "é"], keys=["\x1b]0;", None, None, None, None]
    )
    assert commands("writes").stdout.splitlines() == [
        'a\t0\t"\\u001b]0;"\tbase64:/wA=',
        'a\t1\t-\t"two\\nlines\\u001b[2J"',
        "a\t2\t-\t-",
        "a\t3\t-\t",
        "a\t4\t-\té",
    ]


def test_json_has_all_that_the_log_knows_of_an_event(commands: Commands) -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    event = {"key": "k", "body": "é".encode(), "properties": {"a": "b", "none": None}, "operation": "delete"}
    append_events(commands.log, "a", event, {"body": b"\xff"}, {"body": None}, now=now)
    found = [json.loads(line) for line in commands("writes", "--json").stdout.splitlines()]
    both = {"partition": "a", "enqueued_time": "2026-01-02T03:04:05.000006+00:00"}
    without = {"key": None, "properties": None, "operation": None}
    properties = {"a": "b", "none": None}
    assert found == [
        both | {"sequence": 0, "offset": "0", "key": "k", "body": "é", "properties": properties, "operation": "delete"},
        both | without | {"sequence": 1, "offset": "1", "body_base64": "/w=="},
        both | without | {"sequence": 2, "offset": "2", "body": None},
    ]


def test_partition_start_and_limit_choose_the_events(commands: Commands) -> None:
    for partition in ("-1", "b"):
        append(commands.log, partition, [f"{partition}{n}" for n in range(4)])

    def bodies(*options: str) -> list[str]:
        return [line.rpartition("\t")[2] for line in commands("writes", *options).stdout.splitlines()]

    assert bodies("--partition", "-1") == ["-10", "-11", "-12", "-13"]
    assert bodies("--from", "3") == ["-13", "b3"]
    assert bodies("--limit", "5") == ["-10", "-11", "-12", "-13", "b0"]
    assert bodies("--partition", "b", "--from", "1", "--limit", "2") == ["b1", "b2"]
    assert bodies("--limit", "0") == []


def test_nothing_to_print_is_said_beside_the_output(commands: Commands) -> None:
    append(commands.log, "a", ["0"])
    result = commands("writes", "--from", "7")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"log '{commands.log}' has no events from 7 on\n"


def test_events_that_retention_has_dropped_are_reported_beside_the_output(commands: Commands) -> None:
    moments = iter(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=n) for n in range(9))
    log = Log(commands.log, retention=Retention(age_s=60), now=lambda: next(moments))
    log.prepare()
    for body in (b"0", b"1", b"2"):
        log.partition("a", new=True).append(pa.Table.from_pylist([{"body": body}], schema=BLOCK_SCHEMA))
    log.close()
    result = commands("writes")
    assert (result.exit_code, result.stdout) == (0, "a\t2\t-\t2\n")
    assert result.stderr == "leasehold: partition 'a': retention has dropped the events 0 to 1\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nobody"], 2, "there is no pipeline 'nobody' in"),
        (["rows"], 2, "neither writes nor reads a log: name one with a sink or a feed of `type: log`"),
        (["files"], 2, "bank.yaml files` prints its output"),
        (["writes"], 1, "log' does not exist yet: run the pipeline that writes it, or check its path"),
        (["writes", "--from", "-1"], 2, "--from"),
    ],
)
def test_what_cannot_be_printed_is_said_with_what_to_do(
    commands: Commands, arguments: list[str], code: int, said: str
) -> None:
    result = commands(*arguments)
    assert (result.exit_code, result.stdout, said in result.stderr) == (code, "", True), result.stderr
    assert not commands.log.exists()


def test_a_partition_that_is_not_there_is_reported_with_those_that_are(commands: Commands) -> None:
    append(commands.log, "a", ["0"])
    result = commands("writes", "--partition", "b")
    assert (result.exit_code, result.stderr) == (
        1,
        f"leasehold: log '{commands.log}' has no partition 'b': it has a\n",
    )


def test_a_directory_without_a_log_and_an_empty_log_are_reported_as_such(commands: Commands) -> None:
    commands.log.mkdir()
    (commands.log / "notes.txt").write_text("")
    result = commands("writes")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"log '{commands.log}' holds no partitions yet: run the pipeline" in result.stderr
    log = Log(commands.log)
    log.partition("a", new=True)
    log.close()
    result = commands("writes")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"log '{commands.log}' has no events yet\n")


def test_a_file_in_the_place_of_a_log_is_reported(commands: Commands) -> None:
    commands.log.write_text("")
    result = commands("writes")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"log '{commands.log}' cannot be used (Not a directory)" in result.stderr


def test_a_log_whose_events_are_damaged_is_not_taken_for_one_that_retention_shortened(commands: Commands) -> None:
    append(commands.log, "a", ["0"])
    with closing(sqlite3.connect(commands.log / "a.db")) as connection, connection:
        connection.execute("DELETE FROM blocks")
    result = commands("writes")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"leasehold: log file '{commands.log / 'a.db'}' is damaged (its newest events are missing): restore it from a backup\n"
    )


def test_a_damaged_log_is_reported_with_its_file(commands: Commands) -> None:
    append(commands.log, "a", ["0"])
    (commands.log / "a.db").write_bytes(b"no database" * 100)
    result = commands("writes")
    assert (result.exit_code, f"log file '{commands.log / 'a.db'}'" in result.stderr) == (1, True)


def test_who_asks_for_the_files_of_a_pipeline_that_writes_a_log_is_shown_the_right_command(commands: Commands) -> None:
    result = commands("writes", command="files read")
    file = commands.folder / "bank.yaml"
    assert (result.exit_code, result.stderr) == (
        2,
        f"leasehold: pipeline 'writes' of {file} writes a log, not files: `leasehold log read {file} writes` prints its events\n",
    )


def test_a_pipeline_that_has_written_no_files_yet_is_reported_with_their_place(commands: Commands) -> None:
    result = commands("files", command="files read")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "pipeline 'files' has written no files yet to" in result.stderr
    assert str(commands.folder / "out") in result.stderr


def test_files_that_were_deleted_are_not_called_files_that_were_never_written(commands: Commands) -> None:
    lease = Lease(pipeline="files", partition="a.csv", continuation="5")

    async def create() -> None:
        store = SqliteStore(commands.folder / "leases.db")
        await store.list("")
        await store.create(lease_id("files", "a.csv"), encode_lease(lease))
        await store.close()

    asyncio.run(create())
    result = commands("files", command="files read")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no files yet" not in result.stderr
    assert "the directory is empty or was deleted" in result.stderr
    assert f"`leasehold leases reset {commands.folder / 'bank.yaml'} files --all --to earliest --yes`" in result.stderr
    assert "has written no files yet" in commands("files", "--partition", "b.csv", command="files read").stderr
