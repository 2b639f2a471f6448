"""What an exception of Spark's means for the batch, and for the Spark that raised it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import grpc
import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from leasehold.pipeline.errors import EngineUnavailable, TransformError
from leasehold.pipeline.poison import JobFailed
from leasehold.pipeline.spark.connect import Connected
from leasehold.pipeline.spark.failures import failure_of
from leasehold.pipeline.spark.jvm import Running

SPARK = "org.apache.spark.SparkException"
CLUSTER, LOCAL = "spark://spark:7077", "local[2]"
LOST = (
    "Job aborted due to stage failure: Task 0 in stage 9.0 failed 4 times, most recent failure: Lost task 0.3 in stage 9.0"
    " (TID 12) (10.0.0.7 executor 1): "
)
BROADCAST = (
    f"{LOST}java.io.IOException: {SPARK}: [INTERNAL_ERROR_BROADCAST] Failed to get broadcast_7_piece0 of broadcast_7"
)
VERSION = f"{LOST}java.io.InvalidClassException: org.apache.spark.rdd.RDD; local class incompatible"


class Raised(PySparkException):
    """kind: its class in Java."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message=message)
        java = SimpleNamespace(getName=lambda: kind)
        self._origin = SimpleNamespace(getClass=lambda: java, getMessage=lambda: message, getCause=lambda: None)


def spark_at(master: str) -> Running:
    process = SimpleNamespace(poll=lambda: None)
    return Running(cast(Any, SimpleNamespace(sparkContext=SimpleNamespace(master=master))), cast(Any, process))


def test_executors_that_cannot_fetch_are_named_with_their_cluster_which_is_not_left() -> None:
    running = spark_at(CLUSTER)
    error = failure_of(Raised(SPARK, BROADCAST), running)
    assert isinstance(error, EngineUnavailable)
    assert f"'{CLUSTER}' could not run the job: Failed to get broadcast_7_piece0" in str(error)
    assert "`spark.blockManager.port`" in str(error)
    assert running.is_alive


def test_another_version_of_spark_is_named_with_the_one_to_install() -> None:
    error = failure_of(Raised(SPARK, VERSION), spark_at(CLUSTER))
    assert isinstance(error, EngineUnavailable)
    assert f"install the same version on the cluster and here (PySpark {pyspark.__version__})" in str(error)


@pytest.mark.parametrize(
    ("master", "kind", "message"),
    [
        (LOCAL, SPARK, BROADCAST),
        (LOCAL, "java.lang.OutOfMemoryError", "Java heap space"),
        (CLUSTER, SPARK, "Job aborted due to stage failure: Master removed our application: FAILED"),
    ],
)
def test_a_spark_that_runs_no_more_jobs_is_left(master: str, kind: str, message: str) -> None:
    running = spark_at(master)
    assert isinstance(failure_of(Raised(kind, message), running), EngineUnavailable)
    assert not running.is_alive


@pytest.mark.parametrize(
    "value", ["OutOfMemoryError", "x\nCaused by: java.lang.OutOfMemoryError: y", "Total size of serialized results"]
)
@pytest.mark.parametrize("master", [LOCAL, CLUSTER])
def test_an_event_that_pretends_costs_no_spark(master: str, value: str) -> None:
    running = spark_at(master)
    cast_failed = Raised(
        "org.apache.spark.SparkNumberFormatException", f"[CAST_INVALID_INPUT] The value '{value}' cannot be cast"
    )
    assert isinstance(failure_of(cast_failed, running), JobFailed)
    assert running.is_alive


def test_output_beyond_the_limit_is_the_transforms_fault() -> None:
    message = "Job aborted due to stage failure: Total size of serialized results of 2 tasks (3.0 MiB) is bigger than 1"
    error = failure_of(Raised(SPARK, message), spark_at(LOCAL))
    assert isinstance(error, TransformError)
    assert "make batches smaller" in str(error)


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("INTERNAL", "Received RST_STREAM with error code 2", EngineUnavailable),
        ("UNKNOWN", "Stream removed", EngineUnavailable),
        ("RESOURCE_EXHAUSTED", "too many calls", EngineUnavailable),
        ("ABORTED", "try later", EngineUnavailable),
        ("UNAVAILABLE", "Socket closed", EngineUnavailable),
        ("RESOURCE_EXHAUSTED", "Sent message larger than max (134217745 vs. 134217728)", JobFailed),
    ],
)
def test_errors_of_grpc_count_against_events_only_if_a_message_is_too_large(
    code: str, message: str, kind: type[Exception]
) -> None:
    running = Connected(None, remote="sc://spark")  # type: ignore[arg-type]
    error = SparkConnectGrpcException(message=message, grpc_status_code=grpc.StatusCode[code])
    assert type(failure_of(error, running)) is kind
