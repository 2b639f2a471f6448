"""`leasehold files compact` as a process that gets signals: its lock file goes, and only after the compaction."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from delta_readers import read_rows
from deltalake import write_deltalake
from patience import PATIENCE_S

SETTINGS = """\
leases: {type: sqlite, path: leases.db}
pipelines:
  - name: copy
    feed: {type: log, path: raw}
    sink: {type: files, path: lake, format: delta}
"""
PROGRAM = """\
import signal, sys
from leasehold.pipeline.connectors.files.delta import Table
from leasehold.service.cli.main import main

compact = Table.compact

def compact_when_permitted(table, *arguments):
    print("compacting", flush=True)
    sys.stdin.readline()
    return compact(table, *arguments)

Table.compact = compact_when_permitted
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
main(["files", "compact", "lake.yaml", "copy"])
"""
"""The command, whose compaction begins when it gets a line."""


@pytest.fixture
def compacting(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "lake.yaml").write_text(SETTINGS)
    for number in range(2):
        write_deltalake(tmp_path / "lake", pa.table({"n": [number]}), mode="append")
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "compacting\n", process.communicate(timeout=PATIENCE_S)[1]
            assert lock(tmp_path).exists()
            yield process
        finally:
            process.kill()


def lock(directory: Path) -> Path:
    return directory / "lake/_leasehold/compaction"


def interrupt(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """What the command says then."""
    process.send_signal(number)
    assert process.stderr
    return process.stderr.readline()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_after_the_compaction_and_without_its_lock(
    compacting: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    assert "the compaction is completed first" in interrupt(compacting, number)
    assert lock(tmp_path).exists(), "another compaction would double rows"
    out, err = compacting.communicate("\n", timeout=PATIENCE_S)
    assert (compacting.returncode, out, err) == (128 + number, "2 files became 1\n", "")
    assert not lock(tmp_path).exists()
    assert len(read_rows(tmp_path / "lake", "n")) == 2


def test_a_second_signal_ends_it_at_once_and_leaves_its_lock(compacting: subprocess.Popen[str], tmp_path: Path) -> None:
    assert "its lock file stays" in interrupt(compacting, signal.SIGINT)
    compacting.send_signal(signal.SIGTERM)
    assert compacting.wait(PATIENCE_S) == -signal.SIGTERM
    assert lock(tmp_path).exists()
