"""Each hostile value reaches an endpoint exactly, is refused with its row, or is converted as docs/guarantees.md says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from connectors.http.test_http_sink import opened
from hostile import COLUMNS, TIMES, check_cell, outcome, rows_with
from writers import delivered

from leasehold.pipeline.sink import Output


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("value", COLUMNS)
async def test_a_value_is_sent_or_refused_as_the_page_says(endpoint: Any, value: str, times: int) -> None:
    async def write(table: pa.Table) -> Sequence[Any]:
        async with opened(f"{endpoint.url}/entries") as writer:
            await delivered(writer, Output(table=table, start=None, to="1", events=table.num_rows))
        return [entry["v"] for entry in sorted(endpoint.entries, key=lambda entry: int(entry["sequence"]))]

    check_cell(value, "`http`", await outcome(write, rows_with(COLUMNS[value], times)))
