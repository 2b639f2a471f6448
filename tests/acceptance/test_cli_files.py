"""The sink `files` with the whole service around it: settings, hosts, leases, and the commands that read what came of it."""

from __future__ import annotations

import json
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
