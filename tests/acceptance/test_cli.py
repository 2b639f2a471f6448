"""What users meet at the command line where no Spark is needed: bad input, leases and lag, mending, what hangs."""

from __future__ import annotations

import json
import re
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from patience import PATIENCE_S, until
from plugins_cli import LEASEHOLD, Command, Commands, events_in, leases_in

from leasehold.leases.host_record import HOSTS_PREFIX, decode_host

COPY = """
leases: {type: sqlite, path: state/leases.db, balance_s: 1, duration_s: 15}
api: {port: 0}
log: {format: json}
pipelines:
  - name: copy
    feed: {type: files, path: "words-*.jsonl"}
    sink: {type: log, path: state/copied}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pipeline that copies two files into a log."""
    (tmp_path / "copy.yaml").write_text(COPY)
    (tmp_path / "words-1.jsonl").write_text("".join(f'{{"word": "one {n}"}}\n' for n in range(5)))
    (tmp_path / "words-2.jsonl").write_text("".join(f'{{"word": "two {n}"}}\n' for n in range(3)))
    return tmp_path


def refused(command: Command, *said: str, code: int = 2) -> None:
    """It ended with the exit code, one message that says all of this, and no traceback."""
    assert command.ended() == code, command.out + command.err
    messages = [line for line in command.err.splitlines() if not line.startswith(("{", "  "))]
    assert len(messages) == 1, command.err
    assert messages[0].startswith("leasehold: ")
    assert [text for text in said if text not in command.out + command.err] == [], command.out + command.err
    assert "Traceback" not in command.out + command.err


def with_(folder: Path, **pipeline: Any) -> str:
    """The settings with these in their pipeline; the name of the file."""
    settings = yaml.safe_load(COPY)
    settings["pipelines"][0] |= pipeline
    (folder / "changed.yaml").write_text(yaml.safe_dump(settings))
    return "changed.yaml"


# Bad input


@pytest.mark.parametrize("command", ["check", "run"])
def test_all_that_is_wrong_with_the_settings_is_told_at_once(folder: Path, leasehold: Commands, command: str) -> None:
    settings = COPY.replace("duration_s: 15", "duration_s: 0").replace("port: 0", "prot: 0")
    settings += "    batch_events_max: many\n  - name: rows\n    feed: {type: files, path: '*.csv'}\n"
    settings += "    sink: {type: postgres, dsn: '${NO_SUCH_VARIABLE}', table: rows}\n"
    (folder / "bad.yaml").write_text(settings)
    refused(
        leasehold(command, "bad.yaml"),
        "bad.yaml: 4 problems",
        "line 2: leases.duration_s is 0",
        "line 3: api.prot is not a setting: did you mean `port`?",
        "line 9: pipelines[0].batch_events_max is 'many', and must be a whole number",
        "line 12: pipelines[1].sink.dsn needs the environment variable NO_SUCH_VARIABLE, which is not set",
    )
    assert not (folder / "state").exists()


def test_a_file_that_is_not_there_or_no_yaml_is_named(folder: Path, leasehold: Commands) -> None:
    (folder / "broken.yaml").write_text("pipelines: [")
    refused(leasehold("run", "missing.yaml"), "missing.yaml: 1 problem", "cannot be read (no such file or directory)")
    refused(leasehold("check", "broken.yaml"), "broken.yaml: 1 problem", "line 1")


def test_a_pipeline_or_partition_that_is_not_there_is_told(folder: Path, leasehold: Commands) -> None:
    for arguments in (["lag"], ["leases", "list"]):
        command = leasehold(*arguments, "copy.yaml", "--pipeline", "cpoy")
        refused(command, "there is no pipeline 'cpoy' in copy.yaml: it has copy")
    refused(leasehold("leases", "show", "copy.yaml", "cpoy", "words-1.jsonl"), "there is no pipeline 'cpoy'")


def test_a_lease_file_that_is_no_database_is_left_alone(folder: Path, leasehold: Commands) -> None:
    file = folder / "state" / "leases.db"
    file.parent.mkdir()
    file.write_text("my diary, of more than a hundred bytes" * 10)
    said = f"lease file '{file}' cannot be used (file is not a database)"
    refused(leasehold("run", "copy.yaml"), said)
    for arguments in (["leases", "list"], ["lag"]):
        refused(leasehold(*arguments, "copy.yaml"), said, code=1)
    assert file.read_text().startswith("my diary")


def test_a_host_at_work_keeps_its_name_and_a_later_one_counts_on_or_is_refused(
    folder: Path, leasehold: Commands
) -> None:
    (folder / "named.yaml").write_text(COPY + f"host: {{name: {socket.gethostname()}}}\n")
    first = leasehold("run", "named.yaml")
    until(lambda: bool(leases_in(folder / "state/leases.db", "copy")), "a first lease")
    refused(
        leasehold("run", "named.yaml"),
        f"host.name is '{socket.gethostname()}', and process {first.process.pid} on this machine runs under that name",
    )
    later = leasehold("run", "--until-idle", "copy.yaml")
    assert later.ended() == 0, later.err
    assert f'"host": "{socket.gethostname()}-2"' in later.err
    assert first.process.poll() is None
    first.interrupt()
    assert first.ended() == 0, first.err


def test_a_port_that_is_taken_is_told_before_anything_is_processed(folder: Path, leasehold: Commands) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (folder / "taken.yaml").write_text(COPY.replace("port: 0", f"port: {port}"))
        refused(leasehold("run", "taken.yaml"), f"the API cannot be served on 127.0.0.1:{port}: the port is taken")
    assert not (folder / "state").exists()


def test_a_java_that_is_missing_is_told_with_the_command_that_installs_it(folder: Path, leasehold: Commands) -> None:
    settings = with_(folder, schema="word STRING")
    without = {"PATH": str(folder), "JAVA_HOME": ""}
    refused(leasehold("run", settings, env=without), "no command `java` was found: apt-get install openjdk-")
    probe = leasehold("check", "--probe", settings, env=without)
    assert probe.ended() == 2
    assert "copy: transform: FAILED: Spark needs Java" in probe.out
    assert not (folder / "state" / "copied" / "words-1.jsonl.db").exists()


def test_a_postgresql_that_cannot_be_reached_is_told_without_the_password(
    folder: Path, leasehold: Commands, guarded: str
) -> None:
    wrong = guarded.replace("password=right", "password=swordfish")
    for dsn, said in (
        ("postgresql://me:swordfish@nohost.invalid/bank", "cannot be reached"),
        (wrong, 'password authentication failed for user "guarded"'),
    ):
        settings = with_(folder, sink={"type": "postgres", "dsn": dsn, "table": "rows"})
        run, probe = leasehold("run", settings), leasehold("check", "--probe", settings)
        refused(run, said)
        assert probe.ended() == 2
        assert "copy: sink: FAILED: PostgreSQL" in probe.out
        assert "swordfish" not in run.out + run.err + probe.out + probe.err


@pytest.fixture
def guarded(postgres: Any) -> Iterator[str]:
    """A way into PostgreSQL that asks for a password, which is `right`."""
    rules = postgres.data_dir / "pg_hba.conf"
    before = rules.read_text()
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
        rules.write_text(f"local all guarded scram-sha-256\n{before}")
        connection.execute("SELECT pg_reload_conf()")
        yield postgres.dsn_of("guarded", password="right")
        rules.write_text(before)
        connection.execute("SELECT pg_reload_conf()")
        connection.execute("DROP ROLE guarded")


# Leases and lag


def test_leases_and_lag_before_and_after_a_run(folder: Path, leasehold: Commands) -> None:
    fine = leasehold("check", "--probe", "copy.yaml")
    assert fine.ended() == 0, fine.err
    assert fine.out.splitlines() == [
        "settings: fine, 1 pipeline",
        "leases: fine, 0 there",
        f"copy: feed: fine, 2 partitions now (files:jsonl:{folder}/words-*.jsonl)",
        "copy: transform: fine, none: events are delivered as they are",
        f"copy: sink: fine (log:{folder}/state/copied)",
        "api: fine, any free port",
    ]
    refused(leasehold("lag", "copy.yaml"), f"no leases yet in {folder}/state/leases.db: no host has run this", code=1)
    run = leasehold("run", "--until-idle", "copy.yaml")
    assert run.ended() == 0, run.err
    assert run.out == ""  # with JSON the log alone tells what was done
    assert summaries(run) == [{"pipeline": "copy", "events": 8, "rows": 8, "dead_letters": 0}]
    with (folder / "words-1.jsonl").open("a") as file:
        file.write('{"word": "one more"}\n')

    listed, listed_json, lag, lag_json, shown = (
        leasehold(*arguments)
        for arguments in (
            ["leases", "list", "copy.yaml"],
            ["leases", "list", "copy.yaml", "--json", "--pipeline", "copy"],
            ["lag", "copy.yaml"],
            ["lag", "copy.yaml", "--json"],
            ["leases", "show", "copy.yaml", "copy", "words-2.jsonl"],
        )
    )
    assert [each.ended() for each in (listed, listed_json, lag, lag_json, shown)] == [0] * 5
    assert [line.split()[:5] for line in listed.out.splitlines()[2:]] == [
        ["copy", "words-1.jsonl", "available", "1", "0"],
        ["copy", "words-2.jsonl", "available", "1", "0"],
    ]
    leases = json.loads(listed_json.out)
    assert [(lease["partition"], lease["owner"], lease["state"]) for lease in leases] == [
        ("words-1.jsonl", None, "available"),
        ("words-2.jsonl", None, "available"),
    ]
    assert json.loads(shown.out) == leases[1]
    assert json.loads(shown.out)["continuation"]
    of_first, of_second, of_all = [line.split() for line in lag.out.splitlines()[2:] if line.strip()]
    assert (of_first[:3], of_second) == (["copy", "words-1.jsonl", "1"], ["copy", "words-2.jsonl", "0"])
    assert (of_all[:2], of_all[2:]) == (["all", "1"], of_first[3:])
    assert of_first[4] in ("s", "min")  # since the file was written
    for action in ("show", "release"):
        command = leasehold("leases", action, "copy.yaml", "copy", "words-9.jsonl")
        refused(command, "pipeline 'copy' has no lease 'words-9.jsonl'", code=1)
    found = json.loads(lag_json.out)
    ages = [found.pop("seconds"), *(each.pop("seconds") for each in found["partitions"])]
    assert 0 < ages[1] < PATIENCE_S
    assert (ages[0], ages[2]) == (ages[1], 0)
    assert found == {
        "events": 1,
        "unknown": 0,
        "partitions": [
            {
                "pipeline": "copy",
                "partition": partition,
                "events": events,
                "error": None,
                "age_s": 0.0,
                "failing": None,
                "held_up": [],
            }
            for partition, events in (("words-1.jsonl", 1), ("words-2.jsonl", 0))
        ],
    }


def test_leases_and_lag_say_why_a_partition_stands_still_and_the_log_that_it_works_again(
    folder: Path, leasehold: Commands
) -> None:
    file = folder / "words-2.jsonl"
    good = file.read_text()
    file.write_text(good + '{"word" "no colon"}\n')
    host = leasehold("run", "copy.yaml")
    until(lambda: host.err.count("the record is not JSON") >= 2, "two failures")

    def rows(*arguments: str) -> dict[str, Any]:
        command = leasehold(*arguments, "copy.yaml", "--json")
        assert command.ended() == 0, command.err
        found = json.loads(command.out)
        return {row["partition"]: row for row in (found if isinstance(found, list) else found["partitions"])}

    def settled(*arguments: str) -> dict[str, Any]:
        """Its rows once the host's document is not late, as it may be on a busy machine: then the host is listed as silent."""
        found: dict[str, Any] = {}

        def is_settled() -> bool:
            found.update(rows(*arguments))
            return not found["words-1.jsonl"]["held_up"]

        until(is_settled, "a listing in which nothing holds up the other partition")
        return found

    until(lambda: failing_in(folder / "state/leases.db") == 1, "the failure, in the host's document")
    for arguments in (["leases", "list"], ["lag"]):
        found = settled(*arguments)
        assert found["words-1.jsonl"]["failing"] is None
        failing = found["words-2.jsonl"]["failing"]
        assert "file 'words-2.jsonl', line 4: the record is not JSON" in failing["error"]
        assert failing["failures"] >= 1
        assert failing["since"] <= failing["at"] < failing["retry_at"]
        shown = leasehold(*arguments, "copy.yaml")
        assert shown.ended() == 0, shown.err
        assert re.search(
            r"^pipeline 'copy', partition 'words-2.jsonl' is failing: .*line 4: the record is not JSON.* in a row since"
            r" \S+Z; host '.+' tries again at \S+Z\)$",
            shown.out,
            re.MULTILINE,
        ), shown.out
    file.write_text(good + '{"word": "mended"}\n')
    until(lambda: '"partition recovered"' in host.err, "the recovery, in the log")
    until(lambda: failing_in(folder / "state/leases.db") == 0, "the recovery, in the host's document")
    assert rows("leases", "list")["words-2.jsonl"]["failing"] is None
    [recovered] = [json.loads(line) for line in host.err.splitlines() if '"partition recovered"' in line]
    assert (recovered["level"], recovered["partition"]) == ("info", "words-2.jsonl")
    assert recovered["after_attempts"] == host.err.count('"reason": "failed"')
    host.process.kill()
    host.ended()


def failing_in(file: Path) -> int:
    """Partitions that fail, as the documents of all hosts have it."""
    with closing(sqlite3.connect(file)) as store:
        documents = store.execute("SELECT id, body FROM lease_documents").fetchall()
    records = [decode_host(name, body) for name, body in documents if name.startswith(HOSTS_PREFIX)]
    return sum(record.activity.get("failing", 0) for record in records)


def test_a_released_lease_is_taken_again_and_nothing_is_repeated(folder: Path, leasehold: Commands) -> None:
    host = leasehold("run", "copy.yaml")
    until(lambda: events_in(folder / "state/copied") == expected(folder), "a first delivery")
    before = epochs(folder)
    release = leasehold("leases", "release", "copy.yaml", "copy", "words-1.jsonl")
    assert release.ended() == 0, release.err
    epoch = before["words-1.jsonl"]
    assert re.fullmatch(rf"lease 'words-1.jsonl' of pipeline 'copy' released by '.+' \(epoch {epoch}\)\n", release.out)
    with (folder / "words-1.jsonl").open("a") as file:
        file.write('{"word": "one more"}\n')
    until(lambda: epochs(folder)["words-1.jsonl"] > epoch, "the lease taken again")
    until(lambda: events_in(folder / "state/copied") == expected(folder), "the next delivery")
    assert epochs(folder)["words-2.jsonl"] == before["words-2.jsonl"]
    host.process.send_signal(signal.SIGTERM)
    assert host.ended() == 0, host.err
    assert summaries(host) == [{"pipeline": "copy", "events": 9, "rows": 9, "dead_letters": 0}]
    assert events_in(folder / "state/copied") == expected(folder)
    again = leasehold("leases", "release", "copy.yaml", "copy", "words-1.jsonl")
    assert again.ended() == 0
    assert again.out == "lease 'words-1.jsonl' of pipeline 'copy' has no owner: nothing to release\n"


def summaries(run: Command) -> list[dict[str, Any]]:
    """The last words of a host whose log is JSON."""
    logged = [json.loads(line) for line in run.err.splitlines() if line.startswith("{")]
    stamp = {"time", "level", "host", "event"}
    return [{k: v for k, v in each.items() if k not in stamp} for each in logged if each["event"] == "pipeline summary"]


def epochs(folder: Path) -> dict[str, int]:
    return {lease.partition: lease.epoch for lease in leases_in(folder / "state" / "leases.db", "copy")}


def expected(folder: Path) -> dict[str, list[Any]]:
    return {
        file.name: [json.loads(line) for line in file.read_text().splitlines()] for file in folder.glob("words-*.jsonl")
    }


def test_a_run_until_idle_prints_what_it_has_done_and_a_reader_that_left_changes_nothing(
    folder: Path, leasehold: Commands
) -> None:
    settings = folder / with_(folder)
    settings.write_text(settings.read_text().replace("format: json", "format: text"))
    (folder / "words-3.jsonl").write_text('{"word": "broken"\n')
    first = leasehold("run", "--until-idle", settings)
    assert first.ended() == 1, first.err
    assert first.out == "copy: 8 events in, 8 rows out\n"
    unread = subprocess.run(
        ["bash", "-c", '"$@" | true; exit ${PIPESTATUS[0]}', "bash", LEASEHOLD, "run", "--until-idle", settings],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert unread.returncode == 1, unread.stderr
    assert "Broken pipe" not in unread.stderr
    assert "leasehold: pipeline 'copy', partition 'words-3.jsonl' stopped" in unread.stderr
    (folder / "words-3.jsonl").write_text('{"word": "whole"}\n')
    for said in ("copy: 1 event in, 1 row out\n", "copy: nothing to do\n"):
        run = leasehold("run", "--until-idle", settings)
        assert (run.ended(), run.out) == (0, said), run.err


def test_the_log_is_read_beside_a_host_and_into_a_reader_that_takes_one_line(folder: Path, leasehold: Commands) -> None:
    (folder / "words-1.jsonl").write_text("".join(f'{{"word": "{n}"}}\n' for n in range(20_000)))
    host = leasehold("run", "copy.yaml")
    until(lambda: events_in(folder / "state/copied") == expected(folder), "all deliveries")
    read = leasehold("log", "read", "copy.yaml", "copy", "--json")
    assert (read.ended(), read.err) == (0, "")
    rows = [json.loads(line) for line in read.out.splitlines()]
    assert [(row["partition"], row["sequence"]) for row in rows] == [
        *(("words-1.jsonl", n) for n in range(20_000)),
        *(("words-2.jsonl", n) for n in range(3)),
    ]
    head = subprocess.run(
        [
            "bash",
            "-c",
            '"$@" | head -n 1; exit ${PIPESTATUS[0]}',
            "bash",
            LEASEHOLD,
            "log",
            "read",
            "copy.yaml",
            "copy",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (head.returncode, head.stdout, head.stderr) == (141, 'words-1.jsonl\t0\t-\t{"word": "0"}\n', "")
    host.interrupt()
    assert host.ended() == 0, host.err


# Going on from where it stopped


def test_a_malformed_record_stops_its_partition_alone_and_once_mended_it_goes_on(
    folder: Path, leasehold: Commands
) -> None:
    file = folder / "words-2.jsonl"
    good = file.read_text()
    file.write_text(good + '{"word" "no colon"}\n{"word": "behind it"}\n')
    stopped = leasehold("run", "--until-idle", "copy.yaml")
    refused(
        stopped,
        "pipeline 'copy', partition 'words-2.jsonl' stopped: file 'words-2.jsonl', line 4: the record is not JSON",
        code=1,
    )
    delivered = events_in(folder / "state/copied")
    assert delivered["words-2.jsonl"] == [{"word": f"two {n}"} for n in range(3)]
    assert len(delivered["words-1.jsonl"]) == 5
    file.write_text(good + '{"word": "mended"}\n{"word": "behind it"}\n')
    mended = leasehold("run", "--until-idle", "copy.yaml")
    assert mended.ended() == 0, mended.err
    assert events_in(folder / "state/copied") == expected(folder)


def test_a_record_that_is_not_finished_is_told_and_counted_and_once_mended_delivered_once(
    folder: Path, leasehold: Commands
) -> None:
    table = folder / "u-1.csv"
    table.write_text('id,account\n1,a\n2,"b\n3,c\n4,d\n')
    settings = with_(folder, feed={"type": "files", "path": "u-*.csv"})
    told = "file 'u-1.csv', line 3: a quoted field is not closed: close it in the file"
    unfinished = leasehold("run", "--until-idle", settings)
    refused(unfinished, f"leasehold: pipeline 'copy', partition 'u-1.csv' is unfinished: {told}", code=1)
    assert [row["id"] for row in events_in(folder / "state/copied")["u-1.csv"]] == ["1"]
    lag = leasehold("lag", settings, "--json")
    assert (lag.ended(), json.loads(lag.out)["events"]) == (0, 1)
    staying = leasehold("run", settings)
    until(lambda: told in staying.err, "a warning")
    table.write_text("id,account\n1,a\n2,b\n3,c\n4,d\n")
    finished = leasehold("run", "--until-idle", settings)
    assert finished.ended() == 0, finished.err
    assert [row["id"] for row in events_in(folder / "state/copied")["u-1.csv"]] == ["1", "2", "3", "4"]
    staying.process.send_signal(signal.SIGTERM)
    assert staying.ended() == 0, staying.err
    assert staying.err.count(told) == 1


def test_a_pattern_that_matches_no_file_is_told(folder: Path, leasehold: Commands) -> None:
    settings = with_(folder, feed={"type": "files", "path": "none-*.csv"})
    told = f"no file matches 'none-*.csv' in {folder} yet"
    run, probe = leasehold("run", "--until-idle", settings), leasehold("check", "--probe", settings)
    assert (run.ended(), probe.ended()) == (0, 0)
    assert run.err.count(f"pipeline 'copy': {told}") == 1
    assert f"copy: feed: warning: {told}" in probe.out.splitlines()


# What hangs

HANDLER = """
import json, time
from pathlib import Path

import leasehold

class Handler(leasehold.Handler):
    def process(self, table, context):
        while context.partition == "words-1.jsonl" and not Path("mended").exists():
            time.sleep(0.05)
        with open(f"seen-{context.partition}", "a") as seen:
            seen.writelines(f"{row}\\n" for row in table["sequence"].to_pylist())
"""


def test_a_handler_that_hangs_is_given_up_and_the_others_go_on(folder: Path, leasehold: Commands) -> None:
    (folder / "my_handlers.py").write_text(HANDLER)  # beside the settings, which is not where the command runs
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    settings = folder / with_(
        folder, sink={"type": "python", "handler": "my_handlers:Handler", "gets": "table"}, batch_timeout_s=15
    )
    refused(
        leasehold("run", "--until-idle", settings, cwd=elsewhere),
        "pipeline 'copy', partition 'words-1.jsonl': deliver made no progress for 15 s; its batch was cancelled and the"
        " lease released. Look at what it waits for, or raise batch_timeout_s",
        code=1,
    )
    assert (elsewhere / "seen-words-2.jsonl").read_text().splitlines() == ["0", "1", "2"]
    assert not (elsewhere / "seen-words-1.jsonl").exists()
    assert {lease.owner for lease in leases_in(folder / "state/leases.db", "copy")} == {None}
    (elsewhere / "mended").touch()
    mended = leasehold("run", "--until-idle", settings, cwd=elsewhere)
    assert mended.ended() == 0, mended.err
    assert (elsewhere / "seen-words-1.jsonl").read_text().splitlines() == ["0", "1", "2", "3", "4"]
