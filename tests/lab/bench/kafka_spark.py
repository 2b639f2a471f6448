"""Structured Streaming's sides over Kafka, with Spark's own source, in read_committed as ours.

    python kafka_spark.py batches|real-time JARS

- batches: a topic -> foreachBatch with the usual bookkeeping -> PostgreSQL, as `theirs.py` does it over a log.
- real-time: a topic -> another one in real-time mode, at least once. Each partition has a task that runs all the time.

A job's source and `way` are as in `kafka_sides.py`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kafka_sides import read_source
from pyspark.sql import DataFrame, SparkSession
from sides import Job, commands
from theirs import CONF, serve
from workload import BATCH_EVENTS, PARTITIONS


def stream_of(job: Job, session: SparkSession, **more: str) -> DataFrame:
    servers, topic = read_source(job)
    options = {
        "kafka.bootstrap.servers": servers,
        "kafka.isolation.level": "read_committed",
        "subscribe": topic,
        "startingOffsets": "earliest",
        **more,
    }
    return session.readStream.format("kafka").options(**options).load()


def from_topic(job: Job, session: SparkSession) -> DataFrame:
    stream = stream_of(job, session, maxOffsetsPerTrigger=str(BATCH_EVENTS * PARTITIONS))
    return stream.selectExpr("value AS body")


def serve_in_real_time(jars: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    own = {"spark.driver.extraClassPath": jars, "spark.master": f"local[{PARTITIONS}]"}
    session = SparkSession.builder.config(map=CONF | own).getOrCreate()
    query = None
    for job in commands():
        if job is not None:
            target = {"kafka.bootstrap.servers": read_source(job)[0], "topic": job.way}
            copied = stream_of(job, session).select("key", "value", "partition").writeStream.format("kafka")
            checkpoint = (Path(job.state) / "checkpoint").as_uri()
            writer = copied.options(**target).option("checkpointLocation", checkpoint).outputMode("update")
            query = writer.trigger(realTime="5 minutes").start()
        elif query is not None:
            query.stop()
            query = None
    session.stop()


def main(kind: str, jars: str) -> None:
    if kind == "batches":
        serve(from_topic, spark_driver_extraClassPath=jars)
    else:
        serve_in_real_time(jars)


if __name__ == "__main__":
    main(*sys.argv[1:])
