"""Makes FILE, an archive of the classes that Spark loads to check a transform and to run a small job: with it every start of a
host's or a test's Spark is quicker.

    python tests/java_archive.py FILE

Java does without an archive that is not there or does not fit: another Java, another Spark, another directory.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.jvm import Running
from leasehold.pipeline.spark.transform import SparkTransform

END_S = 1200
"""On a machine with much else to do; seconds, where there is nothing."""
SQL = "SELECT partition, left(word, 1) AS letter, to_json(struct(count(*) AS n)) AS body FROM events GROUP BY partition, letter"


def main(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}.part")  # another `make` may be at it
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:TieredStopAtLevel=1 -Xlog:disable -XX:ArchiveClassesAtExit={part}"
    engine = SparkEngine(driver_memory="512m")
    transform = SparkTransform(engine, "letters", sql=SQL, schema="word STRING NOT NULL")
    asyncio.run(transform.prepare())
    running = engine.running()
    small_job(running.session)
    code = ended(running)
    if code != 0:  # half an archive would be worse than none
        sys.exit(
            f"{file.name} was not made: Java " + (f"took over {END_S} s" if code is None else f"ended with {code}")
        )
    part.replace(file)


def small_job(session: SparkSession) -> None:
    """What the check, which sees no events, leaves out."""
    events = pa.table({"partition": ["1", "2"], "body": ['{"word": "a"}', '{"word": "b"}']})
    words = session.createDataFrame(events).selectExpr("partition", "from_json(body, 'word STRING').word")
    words.groupBy("partition").count().selectExpr("to_json(struct(*)) AS body").toArrow()


def ended(running: Running) -> int | None:
    """The JVM's exit code: it takes its time for the archive, which `Running.stop` would not wait for."""
    assert running.process is not None
    assert running.process.stdin is not None
    running.session.stop()
    running.process.stdin.close()  # that is how a JVM of pyspark's is told to end
    try:
        return running.process.wait(END_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        running.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
