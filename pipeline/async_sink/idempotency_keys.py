"""The idempotency key of every row: (pipeline, partition, position, index), the same whenever the row comes again. Pure.

Batches may be cut elsewhere when they come again. So a row's position is its event's `sequence`, where the output has that
column, and its index counts the rows of one sequence. Rows without one (of an aggregate, say) depend on how batches are cut:
theirs is the position where the batch starts, and their index counts the batch's rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote


class Keys:
    """Those of one batch, for its rows in their order."""

    def __init__(self, pipeline: str, partition: str, start: str | None) -> None:
        self._prefix = f"{_encoded(pipeline)}/{_encoded(partition)}/"
        self._start = _encoded(start or "")
        self._rows: dict[str, int] = {}

    def of(self, row: Mapping[str, Any]) -> str:
        sequence = row.get("sequence")
        position = self._start if sequence is None else _encoded(str(sequence))
        index = self._rows.get(position, 0)
        self._rows[position] = index + 1
        return f"{self._prefix}{position}/{index}"


def _encoded(part: str) -> str:
    return part if part.isdecimal() else quote(part, safe="")
