"""Settings of hosts with Spark that read files and write logs, for tests of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from plugins_cluster import spark_settings


def settings(folder: Path, name: str, pipelines: dict[str, dict[str, Any]]) -> str:
    """Every pipeline reads the files that begin with its name, and writes the log of its name."""
    (folder / name).write_text(
        yaml.safe_dump(
            {
                "leases": {"path": "state/leases.db", "balance_s": 1, "duration_s": 15},
                "spark": spark_settings({"master": "local[2]", "driver_memory": "512m"}),
                "api": {"enabled": False},
                "log": {"format": "json"},
                "pipelines": [
                    {
                        "name": pipeline,
                        "feed": {"type": "files", "path": f"{pipeline}-*.jsonl"},
                        "sink": {"type": "log", "path": f"state/{pipeline}"},
                    }
                    | transform
                    for pipeline, transform in pipelines.items()
                ],
            }
        )
    )
    return name


def write(file: Path, *records: Any) -> None:
    file.write_text("".join(record if isinstance(record, str) else json.dumps(record) + "\n" for record in records))
