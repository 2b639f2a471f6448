"""Executors that read a log: their output is that of the host's own path, and what they cannot process they refuse."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from jobs import Prepare, Write
from patience import PATIENCE_S, until
from plugins_cluster import is_over_connect
from pyspark import cloudpickle

from leasehold.pipeline.batch import Batch
from leasehold.pipeline.connectors.files.feed import FilesChangeFeed
from leasehold.pipeline.connectors.files.sink import Directory, FilesOutputSink, snapshot_of
from leasehold.pipeline.connectors.log import LogChangeFeed, append
from leasehold.pipeline.errors import RangeRefused, SinkUnavailable
from leasehold.pipeline.event import EVENT_SCHEMA, Page
from leasehold.pipeline.ranges import EventRange, RangedBatch, RangeReader
from leasehold.pipeline.sink import Claim, Output
from leasehold.pipeline.spark.transform import SparkTransform
from leasehold.pipeline.staging import Ranged, StagedPart, Stager

pytestmark = pytest.mark.xdist_group("spark-2")

SCHEMA = (
    "text STRING NOT NULL, whole BIGINT, part INT, small TINYINT, price DECIMAL(20,2), ratio DOUBLE, single FLOAT, flag BOOLEAN,"
    " day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, list ARRAY<INT>, inner STRUCT<a: STRING, b: BIGINT>, pairs MAP<STRING, INT>"
)
EVENTS = 3_000
RANGE = 400


def body(number: int) -> bytes:
    value: dict[str, Any] = {
        "text": f"text-{number}-é",
        "whole": number * 10**12,
        "part": number,
        "small": number % 100,
        "price": f"{number}.25",
        "ratio": number / 7,
        "single": 0.5,
        "flag": number % 2 == 0,
        "day": "2026-01-31",
        "at": f"2026-01-31T00:00:{number % 60:02}.000001Z",
        "local": "2026-01-31T00:00:00",
        "list": [number, None],
        "inner": {"a": "x", "b": number},
        "pairs": {"k": number},
    }
    if number % 10 == 0:
        value = {"text": "bare"}
    return json.dumps(value).encode()


@pytest.fixture(scope="module", autouse=True)
def by_value() -> Iterator[None]:
    """Workers of a cluster cannot import these modules."""
    modules = (sys.modules[__name__], sys.modules[until.__module__])
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log")
    for first in range(0, EVENTS, 250):
        append(path, "0", [body(number) for number in range(first, first + 250)])
    return path


@pytest.fixture
def feed(log: Path) -> LogChangeFeed:
    return LogChangeFeed(log)


async def ranged(feed: LogChangeFeed, start: str | None = None, events: int = EVENTS) -> RangedBatch:
    return RangedBatch("0", 1, tuple(await feed.plan_ranges("0", start, events, RANGE)), 0.0)


async def whole(feed: LogChangeFeed) -> Batch:
    pages: list[Page] = []
    async for page in feed.open("0", None):
        pages.append(page)
        if page.to == str(EVENTS - 1):
            break
    return Batch("0", None, tuple(pages), 0.0)


async def processed(transform: SparkTransform, feed: LogChangeFeed, stager: Stager | None = None) -> Ranged:
    return await transform.apply_ranges(await ranged(feed), feed.range_reader(), stager)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"schema": SCHEMA}, id="schema alone"),
        pytest.param({"sql": "SELECT * FROM events"}, id="events as they are"),
        pytest.param({"sql": "SELECT *, part + 1 AS more FROM events WHERE small > 3", "schema": SCHEMA}, id="rows"),
        pytest.param(
            {
                "sql": "SELECT partition, flag, sum(price) AS price, count(*) AS n FROM events GROUP BY ALL",
                "schema": SCHEMA,
            },
            id="groups",
        ),
        pytest.param({"sql": "SELECT partition, sequence FROM events WHERE sequence < 0"}, id="nothing"),
    ],
)
async def test_the_output_is_that_of_the_host_s_own_path(
    spec: dict[str, str], prepared: Prepare, feed: LogChangeFeed
) -> None:
    transform = await prepared(**spec)
    expected, (found, staged) = await transform.apply(await whole(feed)), await processed(transform, feed)
    assert staged == ()
    assert found.schema == expected.schema == transform.columns
    assert in_order(found) == in_order(expected)


def in_order(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows if "sequence" in table.column_names else sorted(rows, key=repr)


class Gated(RangeReader):
    """Ranges wait for the file `first` and, from `second_from` on, for `second` too: for a minute at most."""

    def __init__(self, directory: Path, second_from: int) -> None:
        self._directory = directory
        self._second_from = second_from

    def read_range(self, partition: str, planned: EventRange) -> Iterator[pa.Table]:
        self.open(f"reads {planned.to}")
        until((self._directory / "first").exists, "the first gate is open")
        if int(planned.to) > self._second_from:
            until((self._directory / "second").exists, "the second gate is open")
        yield EVENT_SCHEMA.empty_table()

    def open(self, gate: str) -> None:
        (self._directory / gate).touch()

    def has_begun(self) -> bool:
        return any(self._directory.iterdir())


async def test_small_batches_do_not_wait_for_a_job_of_executors(
    prepared: Prepare, feed: LogChangeFeed, tmp_path: Path
) -> None:
    """Its tasks have all cores when the small batch comes, and others wait. It gets the core that is free first."""
    if is_over_connect():
        pytest.skip("the server decides how its jobs share cores")
    transform, other = await prepared(sql="SELECT * FROM events"), await prepared(sql="SELECT partition FROM events")
    own = transform._job._runs.own
    assert own is not None
    spark, batch = own.session.sparkContext, await whole(feed)
    cores = spark.defaultParallelism
    reader, ranges = Gated(tmp_path, cores), tuple(EventRange(str(n), str(n + 1), 1) for n in range(3 * cores))
    long = asyncio.create_task(transform.apply_ranges(RangedBatch("0", 1, ranges, 0.0), reader, None))
    await asyncio.to_thread(until, reader.has_begun, "a range is read")
    small = asyncio.create_task(other.apply(batch))
    jobs = spark.statusTracker()
    await asyncio.to_thread(until, lambda: len(jobs.getActiveJobsIds()) == 2, "both jobs run")
    reader.open("first")
    async with asyncio.timeout(PATIENCE_S):
        await small
    assert not long.done()
    reader.open("second")
    assert (await long).table.num_rows == 0


async def test_files_are_read_by_executors(prepared: Prepare, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,text\n" + "".join(f'{n},"line\n{n}"\n' for n in range(EVENTS)))
    feed = FilesChangeFeed(f"{tmp_path}/*.csv")
    transform = await prepared(sql="SELECT partition, sequence, text FROM events", schema="text STRING NOT NULL")
    batch = RangedBatch("a.csv", 1, tuple(await feed.plan_ranges("a.csv", None, EVENTS, RANGE)), 0.0)
    table, _ = await transform.apply_ranges(batch, feed.range_reader(), None)
    assert table["text"].to_pylist() == [f"line\n{n}" for n in range(EVENTS)]
    (tmp_path / "a.csv").write_text("n,text\n" + "".join(f'{n},"lime\n{n}"\n' for n in range(EVENTS)))
    with pytest.raises(RangeRefused, match="differs up to line"):
        await transform.apply_ranges(batch, feed.range_reader(), None)
    await feed.close()


async def test_a_python_function_sees_what_executors_read(
    prepared: Prepare, function: Write, feed: LogChangeFeed
) -> None:
    transform = await prepared(
        function=function(
            """
            def transform(events):
                double = F.udf(lambda n: n * 2, "long")
                return events.select("partition", "sequence", double("sequence").alias("double"))
            """
        )
    )
    table, _ = await processed(transform, feed)
    assert table["double"].to_pylist() == [2 * number for number in range(EVENTS)]


async def test_reading_begins_and_ends_where_it_is_told_to(prepared: Prepare, feed: LogChangeFeed) -> None:
    transform = await prepared(sql="SELECT partition, sequence FROM events")
    batch = await ranged(feed, "10", 1_000)
    table, _ = await transform.apply_ranges(batch, feed.range_reader(), None)
    assert (batch.start, batch.to) == ("10", "1010")
    assert table["sequence"].to_pylist() == list(range(11, 1011))


class Broken(RangeReader):
    """Ends early, or at once."""

    def __init__(self, error: str) -> None:
        self.error = error

    def read_range(self, partition: str, planned: EventRange) -> Iterator[pa.Table]:
        raise RuntimeError(self.error)


async def test_a_range_that_cannot_be_read_is_refused_with_its_reason(prepared: Prepare, feed: LogChangeFeed) -> None:
    transform = await prepared(sql="SELECT partition, sequence FROM events")
    with pytest.raises(RangeRefused, match=r"after None: .*the disk is on fire"):
        await transform.apply_ranges(await ranged(feed), Broken("the disk is on fire"), None)
    missing = LogChangeFeed("/nowhere/log").range_reader()
    with pytest.raises(RangeRefused, match="/nowhere/log"):
        await transform.apply_ranges(await ranged(feed), missing, None)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        pytest.param({"schema": "text INT"}, "bodies do not fit the schema: column 'text'", id="misfit"),
        pytest.param(
            {"sql": "SELECT partition, CAST(offset || 'x' AS INT) AS n FROM events"},
            "x' of the type",
            id="poison",
        ),
    ],
)
async def test_what_cannot_be_processed_is_left_to_the_host(
    spec: dict[str, str], words: str, prepared: Prepare, feed: LogChangeFeed
) -> None:
    transform = await prepared(**spec)
    with pytest.raises(RangeRefused, match=words):
        await processed(transform, feed)


async def test_rows_of_another_partition_are_refused(prepared: Prepare, function: Write, feed: LogChangeFeed) -> None:
    transform = await prepared(
        function=function(
            """
            def transform(events):
                def moved(tables):
                    for table in tables:
                        yield table.assign(partition=table["partition"].where(table["sequence"] != 7, "1"))
                return events.select("partition", "sequence").mapInPandas(moved, "partition string, sequence long")
            """
        )
    )
    with pytest.raises(RangeRefused, match="rows of another partition than '0'"):
        await processed(transform, feed)


async def test_another_version_on_executors_is_refused(
    prepared: Prepare, feed: LogChangeFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    transform = await prepared(sql="SELECT partition, sequence FROM events")
    monkeypatch.setattr("leasehold.pipeline.spark.transform.own_version", lambda: "99.0")
    with pytest.raises(RangeRefused, match=r"executors have Leasehold .*, and this host has 99\.0: install"):
        await processed(transform, feed)


def claim(epoch: int = 1) -> Claim:
    return Claim(
        pipeline="bank",
        partition="0",
        owner="host",
        epoch=epoch,
        generation=0,
        continuation=None,
        state="",
        compare=lambda a, b: int(a or -1) - int(b or -1),
    )


class Granted:
    def check(self) -> None: ...

    async def wait_until_granted(self) -> None: ...


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Callable[[SparkTransform], None]:
    """Any output counts as large: the task says so to its worker."""
    from leasehold.pipeline.spark import executors

    return lambda transform: monkeypatch.setattr(
        "leasehold.pipeline.spark.transform.OutputTask",
        lambda **fields: executors.OutputTask(**fields, collected_bytes_max=0),
    )


async def test_large_output_is_staged_by_executors_and_counts_once_it_is_committed(
    prepared: Prepare, feed: LogChangeFeed, tmp_path: Path, large: Callable[[SparkTransform], None]
) -> None:
    transform = await prepared(sql="SELECT partition, sequence, text FROM events", schema=SCHEMA)
    large(transform)
    writer = await FilesOutputSink(Directory(tmp_path)).open(claim())
    table, staged = await processed(transform, feed, await writer.make_stager(None, transform.columns))
    assert (table.num_rows, len(staged)) == (0, -(-EVENTS // RANGE))
    assert snapshot_of(Directory(tmp_path)).rows == 0
    await writer.write(output(staged), Granted())
    found = snapshot_of(Directory(tmp_path)).table()
    assert found["sequence"].to_pylist() == list(range(EVENTS))
    assert found["text"][11].as_py() == "text-11-é"


class Away(Stager):
    def stage(self, table: pa.Table, unique: str) -> StagedPart:
        raise SinkUnavailable("the store is restarting\nwith more words")


async def test_a_destination_that_is_away_for_executors_is_no_refusal(
    prepared: Prepare, feed: LogChangeFeed, large: Callable[[SparkTransform], None]
) -> None:
    transform = await prepared(sql="SELECT * FROM events")
    large(transform)
    with pytest.raises(SinkUnavailable, match=r"^executors cannot stage output: the store is restarting$"):
        await processed(transform, feed, Away())


async def test_tasks_that_a_query_adds_share_what_a_job_may_return(prepared: Prepare, feed: LogChangeFeed) -> None:
    """The rows of one query take about 42,000 bytes, and 5,200 of each of eight tasks."""
    query = "SELECT partition, sequence FROM events"
    once, twice = await prepared(sql=query), await prepared(sql=f"{query} UNION ALL {query}")
    batch, reader = await ranged(feed), feed.range_reader()
    assert (await once.apply_ranges(batch, reader, None, 60_000)).table["sequence"].to_pylist() == list(range(EVENTS))
    found = (await processed(twice, feed)).table["sequence"].to_pylist()
    assert found == [number for number in range(EVENTS) for _ in range(2)]
    with pytest.raises(RangeRefused, match="its share of the 60000 that all tasks of a job may return"):
        await twice.apply_ranges(batch, reader, None, 60_000)


async def test_shuffled_rows_with_sequences_are_left_to_the_host(
    prepared: Prepare, feed: LogChangeFeed, tmp_path: Path, large: Callable[[SparkTransform], None]
) -> None:
    sql = "SELECT /*+ REPARTITION(3) */ partition, sequence FROM events"
    transform = await prepared(sql=sql)
    large(transform)
    writer = await FilesOutputSink(Directory(tmp_path)).open(claim())
    with pytest.raises(RangeRefused, match="shuffles rows"):
        await processed(transform, feed, await writer.make_stager(None, transform.columns))


def output(staged: Sequence[StagedPart]) -> Output:
    return Output(table=pa.table({}), start=None, to=str(EVENTS - 1), events=EVENTS, staged=tuple(staged))


READS = {
    "schema alone": ({"schema": SCHEMA}, 1, None),
    "rows": ({"sql": "SELECT *, upper(text) AS t FROM events WHERE part > 3", "schema": SCHEMA}, 1, None),
    "lists": (
        {"sql": "SELECT partition, sequence, n FROM events LATERAL VIEW explode(list) AS n", "schema": SCHEMA},
        1,
        None,
    ),
    "named once": ({"sql": "WITH a AS (SELECT * FROM events) SELECT * FROM a"}, 1, None),
    "named twice": (
        {"sql": "WITH a AS (SELECT * FROM events) SELECT a.* FROM a JOIN a b USING (partition, sequence)"},
        2,
        "which may shuffle rows",
    ),
    "NOT EXISTS": (
        {"sql": "SELECT * FROM events a WHERE NOT EXISTS (SELECT 1 FROM events b WHERE b.key = a.body)"},
        2,
        "the transform reads `events` 2 times",
    ),
    "groups": ({"sql": "SELECT partition, count(*) AS n FROM events GROUP BY partition"}, 1, "Aggregate, which may"),
    "distinct": ({"sql": "SELECT DISTINCT partition, key FROM events"}, 1, "which may shuffle rows"),
    "a window": (
        {"sql": "SELECT partition, row_number() OVER (PARTITION BY partition ORDER BY sequence) AS n FROM events"},
        1,
        "Window, which may",
    ),
    "an order": ({"sql": "SELECT * FROM events ORDER BY sequence"}, 1, "Sort, which may"),
    "a limit": ({"sql": "SELECT * FROM events LIMIT 3"}, 1, "Limit, which may"),
    "a hint": ({"sql": "SELECT /*+ REPARTITION(3) */ * FROM events"}, 1, "which may shuffle rows"),
}
NOT_READ_OVER_CONNECT = ("named once", "named twice", "NOT EXISTS", "a hint")


@pytest.mark.parametrize("name", READS)
async def test_spark_s_plan_shows_how_often_ranges_are_read(name: str, prepared: Prepare) -> None:
    spec, times, why = READS[name]
    found = (await prepared(**spec)).range_reads
    if is_over_connect() and name in NOT_READ_OVER_CONNECT:
        assert str(found.why_again).startswith("over Spark Connect, queries with ")
        return
    assert found.times == times
    assert (found.why_again is None) if why is None else why in (found.why_again or "")


class Changing(RangeReader):
    """Reads a log, and does not promise that its ranges stay as they are."""

    is_repeatable = False

    def __init__(self, reader: RangeReader) -> None:
        self.reader = reader

    def read_range(self, partition: str, planned: EventRange) -> Iterator[pa.Table]:
        yield from self.reader.read_range(partition, planned)


LATER = """
calls = []

def transform(events):
    calls.append(1)
    rows = events.where("sequence % 2 = 0").select("partition", "sequence")
    {0}
    return rows
"""
"""Behaves when the host starts, and otherwise later."""


@pytest.mark.parametrize(
    ("later", "why"),
    [
        ("pass", None),
        ("rows = rows.distinct() if len(calls) > 1 else rows", "which may shuffle rows"),
        ("len(calls) > 1 and events.count()", "may have run Spark jobs"),
    ],
)
async def test_a_function_is_checked_for_each_batch_of_ranges_that_change(
    later: str, why: str | None, prepared: Prepare, feed: LogChangeFeed, function: Write
) -> None:
    transform = await prepared(function=function(LATER.format(later)))
    if is_over_connect():
        assert "what a function makes of the events is not known" in str(transform.range_reads.why_again)
        return
    assert transform.range_reads.why_again is None
    batch, reader = await ranged(feed), Changing(feed.range_reader())
    if why is None:
        table, _ = await transform.apply_ranges(batch, reader, None)
        assert table["sequence"].to_pylist() == list(range(0, EVENTS, 2))
        return
    with pytest.raises(RangeRefused, match=why):
        await transform.apply_ranges(batch, reader, None)
