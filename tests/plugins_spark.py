"""One Spark for all tests of a process, since starting it takes longer than most of them."""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from jobs import SECRET, SECRET_VALUE
from plugins_cluster import spark_settings

from leasehold.pipeline.batch import Batch
from leasehold.pipeline.event import EVENT_SCHEMA, Page
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.transform import SparkTransform

Prepare = Callable[..., Awaitable[SparkTransform]]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkEngine]:
    conf = {f"spark.hadoop.{SECRET}": SECRET_VALUE}
    settings = spark_settings({"master": "local[2]", "driver_memory": "512m", "conf": conf})
    engine = SparkEngine(**settings, result_bytes_max=16 * 1024 * 1024)
    engine.use()  # it is kept for the next test
    yield engine
    engine.stop()


@pytest.fixture
async def prepared(spark: SparkEngine) -> AsyncIterator[Prepare]:
    """Makes transforms that are closed with the test."""
    made: list[SparkTransform] = []
    numbers = count()

    async def prepare(**spec: Any) -> SparkTransform:
        made.append(SparkTransform(spark, f"pipeline-{next(numbers)}", **spec))
        await made[-1].prepare()
        return made[-1]

    yield prepare
    for each in made:
        await each.close()


@pytest.fixture
def batch() -> Callable[..., Batch]:
    """A batch of one partition: an event for each body, or for each dictionary of columns."""

    def made(partition: str, events: Sequence[bytes | str | dict[str, Any] | None], first: int = 0) -> Batch:
        rows = [
            {
                "partition": partition,
                "sequence": first + number,
                "offset": str(first + number),
                "enqueued_time": datetime(2026, 1, 1, tzinfo=UTC),
                "properties": [("file", "transactions-1.csv"), ("line", str(first + number + 2))],
                **(event if isinstance(event, dict) else {"body": event.encode() if isinstance(event, str) else event}),
            }
            for number, event in enumerate(events)
        ]
        return Batch(
            partition, None, (Page(pa.Table.from_pylist(rows, schema=EVENT_SCHEMA), str(first + len(rows))),), 0.0
        )

    return made


@pytest.fixture
def function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module with a function `transform` and tells its `module:function`."""
    numbers = count()

    def written(body: str) -> str:
        name = f"transforms_{tmp_path.name.replace('-', '_')}_{next(numbers)}"
        header = "from pyspark.sql import functions as F\nimport pandas as pd\n\n\n"
        (tmp_path / f"{name}.py").write_text(header + textwrap.dedent(body))
        return f"{name}:transform"

    monkeypatch.syspath_prepend(tmp_path)
    return written
