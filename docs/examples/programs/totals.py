"""Adds up amounts from CSV files in PostgreSQL, exactly once."""

import asyncio
import os

from leasehold import FilesFeed, Pipeline, PostgresLeases, PostgresSink, Processor, Sql

dsn = os.environ["LEASEHOLD_POSTGRES_DSN"]
totals = PostgresSink(
    dsn=dsn,
    setup="CREATE TABLE IF NOT EXISTS totals (customer text PRIMARY KEY, total bigint NOT NULL)",
    merge="INSERT INTO totals SELECT customer, total FROM batch ORDER BY customer"
    " ON CONFLICT (customer) DO UPDATE SET total = totals.total + excluded.total",
)
by_customer = Sql(
    "SELECT partition, customer, sum(amount) AS total FROM events GROUP BY partition, customer",
    schema="customer STRING NOT NULL, amount BIGINT NOT NULL",
)
pipeline = Pipeline("totals", feed=FilesFeed(path="sales-*.csv"), transform=by_customer, sink=totals)
if __name__ == "__main__":
    asyncio.run(Processor(pipeline, leases=PostgresLeases(dsn=dsn)).run())
