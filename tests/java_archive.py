"""Makes FILE, an archive of the classes that Spark loads to run a small job: with it every start of a test's Spark is quicker.

    python tests/java_archive.py FILE

Java does without an archive that is not there or does not fit: another Java, another Spark, another directory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from pipeline.spark_conf import defaults

END_S = 120


def main(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:TieredStopAtLevel=1 -Xlog:disable -XX:ArchiveClassesAtExit={part}"
    conf = SparkConf(loadDefaults=False).setAll(list(defaults("local[2]", "512m", 1 << 20).items()))
    gateway = launch_gateway(conf, {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL})
    context = SparkContext(gateway=gateway, conf=conf)
    small_job(SparkSession(context))
    context.stop()
    gateway.proc.stdin.close()  # that is how a JVM of pyspark's is told to end, and what it writes the archive at
    if gateway.proc.wait(END_S) == 0:  # half an archive would be worse than none
        part.replace(file)


def small_job(session: SparkSession) -> None:
    events = pa.table({"partition": ["1", "2"], "body": ['{"word": "a"}', '{"word": "b"}']})
    words = session.createDataFrame(events).selectExpr("partition", "from_json(body, 'word STRING').word")
    words.groupBy("partition").count().selectExpr("to_json(struct(*)) AS body").toArrow()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
