"""Entries of several files, and names of what executors stage."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from leasehold.pipeline.connectors.files.sink.entry import (
    DataFile,
    ManifestEntry,
    encoded,
    entry_in,
    epoch_of,
    folders_of,
    version_of,
)
from leasehold.pipeline.connectors.files.sink.storage import FilesDamaged

FILE = DataFile(
    name="x", format="parquet", rows=1, bytes=2, sha256="a", version=3, generation=0, epoch=4, start=None, to="9"
)
ENTRY = ManifestEntry(
    version=3, id="i", kind="batch", pipeline="p", partition="a", generation=0, epoch=4, owner="h", position="9"
)


@pytest.mark.parametrize("count", [0, 1])
def test_an_entry_with_one_file_or_none_is_as_version_0_2_wrote_it(count: int) -> None:
    written = encoded(replace(ENTRY, files=(FILE,) * count))
    found = json.loads(written)
    assert found["format"] == 1
    assert "files" not in found
    assert (found["file"] is None) == (count == 0)
    assert entry_in(written, "n").files == (FILE,) * count


def test_an_entry_with_several_files_is_one_that_version_0_2_refuses() -> None:
    several = replace(ENTRY, files=(FILE, replace(FILE, name="y")))
    found = json.loads(encoded(several))
    assert found["format"] == 2
    assert "file" not in found
    assert entry_in(encoded(several), "n") == several


@pytest.mark.parametrize(
    "change", [{"files": None}, {"files": [1]}, {"files": [{}]}, {"format": 3}, {"format": None}, {"files": 7}]
)
def test_a_damaged_entry_of_several_files_is_named(change: dict[str, object]) -> None:
    several = json.loads(encoded(replace(ENTRY, files=(FILE, FILE))))
    with pytest.raises(FilesDamaged, match="'the-name' is"):
        entry_in(json.dumps({**several, **change}).encode(), "the-name")


def test_a_staged_file_bears_the_epoch_and_where_its_batch_begins() -> None:
    folders = folders_of("p", "a")
    names = {folders.staging(16, epoch, start) for epoch in (4, 2**63 - 1) for start in (None, "None", "9")}
    assert len(names) == 6
    name = f"{folders.staging(16, 4, '9')}-{'0' * 32}.parquet"
    assert name.startswith(f"{folders.staged_at(16)}/")
    assert (epoch_of(name), version_of(name)) == (4, None)


def test_staged_files_of_few_entries_share_a_folder() -> None:
    folders = folders_of("p", "a")
    assert len({folders.staged_at(version) for version in range(800)}) == 100
    assert folders.staged_at(16) == folders.staged_at(23) != folders.staged_at(24)


def test_a_staged_file_without_a_folder_of_its_entry_has_an_epoch() -> None:
    """As executors named them before."""
    assert epoch_of(f"p/a/staged/{4:019d}/{'0' * 16}-{'0' * 32}.parquet") == 4


@pytest.mark.parametrize(
    "name",
    [
        f"{folders_of('p', 'a').attempt(7, '0' * 32, 'parquet')}",
        f"p/a/staged/{4:019d}/{'0' * 16}-{'0' * 32}.parquet.tmp",
        f"p/a/staged/{4:019d}/notes.txt",
        f"p/a/staged/x/{'0' * 16}-{'0' * 32}.parquet",
        f"p/a/staged/{2:012d}/x/{'0' * 16}-{'0' * 32}.parquet",
        f"p/a/staged/{2:012d}/{'0' * 16}-{'0' * 32}.parquet",
    ],
)
def test_other_files_have_no_epoch(name: str) -> None:
    assert epoch_of(name) is None
