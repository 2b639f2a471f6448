"""A processed file is archived: its lease is closed, and the group ends idle without it."""

from __future__ import annotations

import json
from pathlib import Path

from plugins_cli import Commands

SETTINGS = """
leases: {path: leases.db, balance_s: 1, duration_s: 15}
api: {enabled: false}
pipelines:
  - {name: letters, feed: {type: files, path: "words-*.jsonl"}, sink: {type: files, path: out}}
"""


def words(path: Path, count: int) -> None:
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(count)))


def test_a_processed_file_is_archived_and_its_name_is_not_read_again_unasked(
    tmp_path: Path, leasehold: Commands
) -> None:
    def run(*arguments: str, code: int = 0) -> str:
        command = leasehold(*arguments)
        assert command.ended() == code, command.out + command.err
        return command.out + command.err

    def rows() -> int:
        return int(run("files", "read", "letters.yaml", "letters", "--to", "all.parquet").split()[0])

    (tmp_path / "letters.yaml").write_text(SETTINGS)
    for number in (1, 2):
        words(tmp_path / f"words-{number}.jsonl", 5)
    run("run", "letters.yaml", "--until-idle")
    assert rows() == 10

    (tmp_path / "archive").mkdir()
    (tmp_path / "words-1.jsonl").rename(tmp_path / "archive" / "words-1.jsonl")
    assert "leasehold leases close FILE letters words-1.jsonl" in run("run", "letters.yaml", "--until-idle", code=1)
    said = run("leases", "close", "letters.yaml", "letters", "words-1.jsonl")
    assert said.startswith("lease 'words-1.jsonl' of pipeline 'letters' closed at '")
    run("run", "letters.yaml", "--until-idle")
    lag = json.loads(run("lag", "letters.yaml", "--json"))
    assert (lag["events"], lag["unknown"]) == (0, 0)

    words(tmp_path / "words-1.jsonl", 7)
    assert "whose lease an operator closed ('words-1.jsonl')" in run("run", "letters.yaml", "--until-idle")
    assert rows() == 10
    run("leases", "reset", "letters.yaml", "letters", "words-1.jsonl", "--to", "earliest", code=2)
    run("leases", "reset", "letters.yaml", "letters", "words-1.jsonl", "--to", "earliest", "--yes")
    run("run", "letters.yaml", "--until-idle")
    assert rows() == 17
