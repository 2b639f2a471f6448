"""The sink `files` with the whole service around it: settings, hosts, leases, and the commands that read what came of it."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from plugins_cli import Commands

from leasehold.pipeline.connectors.files.sink import Directory, snapshot_of

SETTINGS = """
leases: {path: leases.db}
host: {name: writer}  # or a host of another test could have the dead one's name, and its leases would be waited for
api: {enabled: false}
pipelines:
  - {name: words, feed: {type: files, path: "words-*.jsonl"}, sink: {type: files, path: out}}
"""


def test_what_hosts_leave_when_killed_between_file_and_checkpoint_counts_once(
    tmp_path: Path, leasehold: Commands
) -> None:
    (tmp_path / "words.yaml").write_text(SETTINGS)
    written: dict[int, list[int]] = {number: [] for number in range(1, 5)}
    for point in ("before write:1", "after write:1", "before checkpoint:1"):
        for number, values in written.items():  # each host has something to do, whatever the last one came to
            new = [number * 1000 + len(values) + n for n in range(50)]
            with (tmp_path / f"words-{number}.jsonl").open("a") as file:
                file.writelines(json.dumps({"n": n}) + "\n" for n in new)
            values += new
        killed = leasehold("run", "words.yaml", "--until-idle", env={"LEASEHOLD_CRASH_POINT": point})
        assert killed.ended() == -9, killed.err
    done = leasehold("run", "words.yaml", "--until-idle")
    assert done.ended() == 0, done.err
    read = leasehold("files", "read", "words.yaml", "words", "--to", "all.parquet")
    assert read.ended() == 0, read.err
    snapshot = snapshot_of(Directory(tmp_path / "out"))
    bodies: dict[str, list[int]] = {each.partition: [] for each in snapshot.partitions}
    for row in snapshot.table().to_pylist():
        bodies[row["partition"]].append(json.loads(row["body"])["n"])
    assert sorted(bodies.values()) == sorted(written.values())
    assert read.out.startswith("600 rows of ")


UNTIL_IDLE = """
leases: {path: state/leases.db}
api: {enabled: false}
pipelines:
  - {name: words, feed: {type: files, path: "in/**/*.jsonl"}, sink: {type: files, path: out, format: jsonl}}
"""


def test_an_entry_that_cannot_be_used_costs_the_others_nothing_and_the_run_its_exit_code(
    tmp_path: Path, leasehold: Commands
) -> None:
    (tmp_path / "words.yaml").write_text(UNTIL_IDLE)
    (tmp_path / "in/sub").mkdir(parents=True)
    for name in ("in/a.jsonl", "in/sub/b.jsonl"):
        (tmp_path / name).write_text('{"n": 1}\n')
    (tmp_path / "in/loop.jsonl").symlink_to("loop.jsonl")
    (tmp_path / "in" / os.fsdecode(b"\xff.jsonl")).touch()
    probed = leasehold("check", "--probe", "words.yaml")
    assert probed.ended() == 2
    assert "words: feed: FAILED: '" in probed.out
    done = leasehold("run", "words.yaml", "--until-idle")
    assert done.ended() == 1
    assert "words: 2 events in, 2 rows out" in done.out
    for name, why in (("loop.jsonl", "it leads nowhere"), ("\\xff.jsonl", "the file has a name that is not UTF-8")):
        assert f"pipeline 'words', partition '{tmp_path}/in/{name}' stopped: {why}" in done.err
    (tmp_path / "in/loop.jsonl").unlink()
    (tmp_path / "in" / os.fsdecode(b"\xff.jsonl")).unlink()
    assert leasehold("run", "words.yaml", "--until-idle").ended() == 0


def test_a_directory_that_does_not_exist_ends_the_run_with_its_name(tmp_path: Path, leasehold: Commands) -> None:
    (tmp_path / "words.yaml").write_text(UNTIL_IDLE)
    done = leasehold("run", "words.yaml", "--until-idle")
    assert done.ended() == 1
    assert f"pipeline 'words' stopped: directory '{tmp_path}/in' cannot be listed" in done.err


def test_a_lease_that_cannot_be_read_ends_the_run_with_the_document(tmp_path: Path, leasehold: Commands) -> None:
    (tmp_path / "words.yaml").write_text(UNTIL_IDLE)
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"in/{name}.jsonl").write_text('{"n": 1}\n')
    assert leasehold("run", "words.yaml", "--until-idle").ended() == 0
    with closing(sqlite3.connect(tmp_path / "state/leases.db")) as store:
        store.execute("UPDATE lease_documents SET body = '{' WHERE id = 'words/leases/a.jsonl'")
        store.commit()
    done = leasehold("run", "words.yaml", "--until-idle")
    assert done.ended() == 1
    assert "pipeline 'words', partition 'a.jsonl' stopped: document 'words/leases/a.jsonl' is not JSON" in done.err


def test_the_list_advises_no_reset_if_a_run_continues_at_the_sinks_position(
    tmp_path: Path, leasehold: Commands
) -> None:
    (tmp_path / "words.yaml").write_text(UNTIL_IDLE)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text('{"n": 1}\n')
    assert leasehold("run", "words.yaml", "--until-idle").ended() == 0
    with closing(sqlite3.connect(tmp_path / "state/leases.db")) as store:
        ((body,),) = store.execute("SELECT body FROM lease_documents WHERE id = 'words/leases/a.jsonl'")
        lease = json.loads(body)
        lease["continuation"] = lease["continuation"].replace('"offset":9', '"offset":999')
        assert "999" in lease["continuation"]
        store.execute("UPDATE lease_documents SET body = ? WHERE id = 'words/leases/a.jsonl'", (json.dumps(lease),))
        store.commit()
    listed = leasehold("leases", "list", "words.yaml")
    assert listed.ended() == 0
    assert "reset" not in listed.out + listed.err
    assert "a host continues there by itself" in listed.out + listed.err
    assert leasehold("run", "words.yaml", "--until-idle").ended() == 0
    (tmp_path / "in/a.jsonl").write_text("")
    listed = leasehold("leases", "list", "words.yaml")
    assert listed.ended() == 0
    assert "restore what was read, or reset the lease to a new position" in listed.out + listed.err


def test_a_file_that_can_no_longer_be_read_ends_the_run_with_the_reason(tmp_path: Path, leasehold: Commands) -> None:
    """To read the memory of a process at 0 fails with EIO, as to read a broken disk does."""
    (tmp_path / "words.yaml").write_text(UNTIL_IDLE)
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"in/{name}.jsonl").write_text('{"n": 1}\n')
    (tmp_path / "in/broken.jsonl").symlink_to("/proc/self/mem")
    done = leasehold("run", "words.yaml", "--until-idle")
    assert done.ended() == 1
    file = f"file '{tmp_path}/in/broken.jsonl' cannot be read now (Input/output error)"
    assert f"pipeline 'words', partition 'broken.jsonl' stopped: {file}" in done.err
    assert "words: 2 events in, 2 rows out" in done.out
    (tmp_path / "in/broken.jsonl").unlink()
    (tmp_path / "in/a.jsonl").unlink()
    done = leasehold("run", "words.yaml", "--until-idle")
    assert done.ended() == 1
    assert "pipeline 'words', partition 'a.jsonl' stopped: " in done.err
