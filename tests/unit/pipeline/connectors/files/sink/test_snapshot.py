"""What readers find: pyarrow and DuckDB by the snapshot's paths, across files of several schemas and formats."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from unit.pipeline.connectors.files.sink.places import output, wrote

from leasehold.pipeline.connectors.files.sink import Directory, FilesDamaged, snapshot_of


def test_pyarrow_and_duckdb_read_what_counts_and_no_leftovers(tmp_path: Path) -> None:
    snapshot = wrote(tmp_path, *(output(start, start + 2).table for start in (0, 2, 4)))
    left = Path(snapshot.paths[0]).with_name(f"{2:012d}-{'f' * 32}.parquet")
    left.write_bytes(Path(snapshot.paths[0]).read_bytes())
    snapshot = snapshot_of(Directory(tmp_path))
    assert snapshot.table()["sequence"].to_pylist() == [1, 2, 3, 4, 5, 6]
    assert ds.dataset(snapshot.paths).to_table()["sequence"].to_pylist() == [1, 2, 3, 4, 5, 6]
    query = "SELECT count(*), sum(sequence), arg_min(decode(body), sequence) FROM read_parquet(?)"
    assert duckdb.execute(query, [snapshot.paths]).fetchall() == [(6, 21, snapshot.table()["body"][0].as_py().decode())]


def test_a_new_column_is_null_in_older_files(tmp_path: Path) -> None:
    snapshot = wrote(tmp_path, pa.table({"a": [1]}), pa.table({"a": [2], "b": ["x"]}))
    assert snapshot.table().to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]
    found = duckdb.execute("SELECT a, b FROM read_parquet(?, union_by_name=true) ORDER BY a", [snapshot.paths])
    assert found.fetchall() == [(1, None), (2, "x")]


def test_a_column_whose_type_changed_is_told(tmp_path: Path) -> None:
    snapshot = wrote(tmp_path, pa.table({"a": [1]}), pa.table({"a": ["x"]}))
    with pytest.raises(ValueError, match=r"in several types: .*a"):
        snapshot.table()
    assert [table["a"].to_pylist() for table in snapshot.tables()] == [[1], ["x"]]


def test_both_formats_are_read_together(tmp_path: Path) -> None:
    wrote(tmp_path, pa.table({"a": [1]}))
    snapshot = wrote(tmp_path, pa.table({"a": [2]}), epoch=2, format="jsonl")
    assert snapshot.table()["a"].to_pylist() == [1, 2]


def test_a_file_that_is_missing_or_changed_is_told(tmp_path: Path) -> None:
    snapshot = wrote(tmp_path, pa.table({"a": [1]}), pa.table({"a": [2]}))
    first, second = map(Path, snapshot.paths)
    first.write_bytes(second.read_bytes())
    with pytest.raises(FilesDamaged, match="was changed"):
        snapshot.table()
    first.unlink()
    with pytest.raises(FilesDamaged, match="is missing"):
        snapshot.table()


def test_one_partition_and_one_pipeline_can_be_asked_for(tmp_path: Path) -> None:
    for partition in ("a", "b"):
        wrote(tmp_path, pa.table({"a": [partition]}), partition=partition)
    place = Directory(tmp_path)
    assert [each.partition for each in snapshot_of(place).partitions] == ["a", "b"]
    assert snapshot_of(place, partition="b").table()["a"].to_pylist() == ["b"]
    assert snapshot_of(place, pipeline="bank", partition="b").rows == 1
    assert snapshot_of(place, pipeline="another").files == []
    assert snapshot_of(Directory(tmp_path / "nothing")).table().num_rows == 0
