"""What tests of Spark's jobs have in common: a function of one row and events by their keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from leasehold.pipeline.batch import Batch
from leasehold.pipeline.spark.transform import SparkTransform

Prepare = Callable[..., Awaitable[SparkTransform]]
MakeBatch = Callable[..., Batch]
Write = Callable[[str], str]

SECRET, SECRET_VALUE = "fs.example.account.key", "for-no-process-list"
"""A setting of Spark's storage, and what nobody but Spark should see."""
PER_KEY = """
    def transform(events):
        def looked_at(key):
            {body}
            return key
        return events.select("partition", "sequence", F.udf(looked_at, "string")("key").alias("key"))
"""


def keyed(keys: str) -> list[dict[str, Any]]:
    return [{"key": key} for key in keys]
