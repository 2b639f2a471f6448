"""Runs SQL statements in a Spark with the jars of Delta and of Kafka's source.

Each line of input is a statement, a JSON string. Each line of output is its rows, a JSON list.

    python statements.py JARS DIRECTORY     JARS: a class path. DIRECTORY: for Spark's own files

A statement that fails gives {"error": ...} instead.
"""

import json
import os
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

jars, directory = sys.argv[1:]
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # Spark's launcher writes there, too
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.driver.extraClassPath", jars)
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.sql.warehouse.dir", str(Path(directory) / "warehouse"))
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.databricks.delta.snapshotPartitions", "1")
    .config("spark.sql.sources.parallelPartitionDiscovery.parallelism", "1")  # of VACUUM; 10,000 by default
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
for line in sys.stdin:
    try:
        answer = [row.asDict(recursive=True) for row in spark.sql(json.loads(line)).collect()]
    except PySparkException as error:
        answer = {"error": str(error)}
    print(json.dumps(answer, default=str), file=answers, flush=True)
