"""Hostile values in files of a container: as docs/guarantees.md says it of files in a directory."""

from __future__ import annotations

import pytest
from connectors.test_files_blobs import Places, places
from hostile import COLUMNS, check_cell, files, outcome, rows_with
from plugins_node import ON_BOTH

from leasehold.pipeline.connectors.files.sink.formats import Format

__all__ = ["places"]
pytestmark = ON_BOTH


@pytest.mark.parametrize("value", COLUMNS)
@pytest.mark.parametrize(("format", "column"), [("jsonl", "`files`, JSON lines"), ("parquet", "`files`, Parquet")])
async def test_a_value_is_stored_or_refused_as_the_page_says(
    places: Places, format: Format, column: str, value: str
) -> None:
    check_cell(value, column, await outcome(files(places, format), rows_with(COLUMNS[value], 1)))
