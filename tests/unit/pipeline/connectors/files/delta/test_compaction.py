"""One compaction at a time, because deltalake doubles rows otherwise."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from delta_readers import read_rows
from deltalake import write_deltalake

from leasehold.pipeline.connectors.files.delta import Table, exclusive_compaction, location_of
from leasehold.pipeline.connectors.files.sink import Directory
from leasehold.pipeline.connectors.files.sink.storage import FilesUnavailable


def test_two_compactions_of_one_version_double_the_rows(tmp_path: Path) -> None:
    """Of deltalake. If this fails, it has learned to notice the other one, and the lock may go."""
    path = tmp_path / "table"
    for number in range(3):
        write_deltalake(path, pa.table({"n": [number]}), mode="append")
    tables = [Table(location_of(path)), Table(location_of(path))]
    for table in tables:
        table.refresh()
    for table in tables:
        table.compact()
    assert len(read_rows(path, "n")) == 6


def test_a_second_compaction_is_refused_until_the_first_one_has_ended(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    with (
        exclusive_compaction(place, "process 1 on a"),
        pytest.raises(
            FilesUnavailable, match=rf"\(process 1 on a\).*: wait for it.* delete '{tmp_path}/_leasehold/compaction'"
        ),
        exclusive_compaction(place, "process 2 on b"),
    ):
        pytest.fail("two at once")
    with exclusive_compaction(place, "process 2 on b"):
        pass


def test_a_compaction_that_fails_lets_the_next_one_begin(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    with pytest.raises(ZeroDivisionError), exclusive_compaction(place, "process 1 on a"):
        raise ZeroDivisionError
    with exclusive_compaction(place, "process 2 on b"):
        pass
