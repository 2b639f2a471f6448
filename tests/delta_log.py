"""A Delta table's log as it is stored: versions, files in their order, and applications, which readers of rows do not show.

It knows no deltalake. `delta_readers` has the rows as programs of others read them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

LOG = "_delta_log"


@dataclass(slots=True)
class TableState:
    """version: the newest. files: path -> its `add`, in the order of the log. txns: appId -> version."""

    path: Path
    version: int = -1
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    txns: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        return [each["name"] for each in json.loads(self.metadata["schemaString"])["fields"]]

    def rows(self) -> list[dict[str, Any]]:
        """Of all files, in the order in which the log has them. A column that a file lacks is null."""
        rows: list[dict[str, Any]] = []
        for name, add in self.files.items():
            table = pq.read_table(self.path / unquote(name), partitioning=None)
            assert table.num_rows == json.loads(add["stats"])["numRecords"]
            empty: dict[str, Any] = dict.fromkeys(self.columns)
            rows += [empty | row for row in table.to_pylist()]
        return rows


def versions_with_files(path: Path) -> list[int]:
    """Those that have added data files with other rows than files that they removed. All entries have to be there still."""
    found = []
    for version in range(read_log(path).version + 1):
        entry = (path / LOG / f"{version:020d}.json").read_text()
        adds = [action["add"] for line in entry.splitlines() if "add" in (action := json.loads(line))]
        if any(add["dataChange"] for add in adds):
            found.append(version)
    return found


def read_log(path: Path) -> TableState:
    """The table as of its newest version; without any version, as of nothing."""
    state = TableState(path)
    log = path / LOG
    first = 0
    if checkpoints := sorted(log.glob("*.checkpoint.parquet")):
        first = int(checkpoints[-1].name.split(".")[0])
        for action in pq.read_table(checkpoints[-1]).to_pylist():
            _apply(state, {kind: _without_nulls(kind, value) for kind, value in action.items() if value is not None})
        state.version, first = first, first + 1
    while (entry := log / f"{first:020d}.json").exists():
        for line in entry.read_text().splitlines():
            _apply(state, json.loads(line))
        state.version, first = first, first + 1
    return state


def _apply(state: TableState, action: dict[str, Any]) -> None:
    if (add := action.get("add")) is not None:
        state.files[add["path"]] = add
    if (remove := action.get("remove")) is not None:
        state.files.pop(remove["path"], None)
    if (txn := action.get("txn")) is not None:
        state.txns[txn["appId"]] = txn["version"]
    if (metadata := action.get("metaData")) is not None:
        state.metadata = metadata


def _without_nulls(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    if kind == "add" and value.get("stats") is None:
        parsed = value.get("stats_parsed") or {}
        value = value | {"stats": json.dumps({"numRecords": parsed.get("numRecords")})}
    return value
