"""Transforms in Spark: the session, plans, and one job for all batches that wait. The only home of PySpark."""
