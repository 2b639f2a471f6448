"""A transform, and its jobs, without a Spark."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from unit.pipeline.spark.connect_server import Server, impatient

from leasehold.pipeline.errors import EngineUnavailable
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.ranges import EventRange, RangedBatch, RangeReader, RangeReads
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.executors import RETURNED, OutputTask
from leasehold.pipeline.spark.runs import Run
from leasehold.pipeline.spark.session import PipelineSession
from leasehold.pipeline.spark.transform import SparkJob, SparkTransform
from leasehold.pipeline.transform import Checked, TransformSpec


@pytest.mark.parametrize(
    ("settings", "yields_events"),
    [({"schema": "a INT"}, True), ({"sql": "SELECT * FROM events"}, False), ({"function": "here:there"}, False)],
    ids=["schema", "sql", "function"],
)
def test_a_query_and_a_function_may_call_any_column_sequence(settings: dict[str, str], yields_events: bool) -> None:
    engine = SparkEngine()
    assert SparkTransform(engine, "pipe", **settings).yields_events is yields_events


@pytest.fixture
def job(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SparkJob:
    """With a function whose module is sent."""
    file = tmp_path / "orders.py"
    file.write_text("def totals(events): return events\n")
    module = ModuleType("orders")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "orders", module)
    job = SparkJob(server.engine, spec(function="orders:totals"))
    job._function = lambda events: events
    return job


def spec(*, sql: str | None = None, function: str | None = None) -> TransformSpec:
    return TransformSpec(name="p", sql=sql, function=function, schema=None, goes_on=False)


async def test_the_tasks_of_a_job_return_no_more_than_its_host_has_room_for(
    server: Server, job: SparkJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[OutputTask] = []

    def returned(own: PipelineSession, output: object, task: OutputTask) -> pa.Table:
        tasks.append(task)
        return RETURNED.empty_table()

    monkeypatch.setattr(PipelineSession, "ranged", lambda own, task, reads: None)
    monkeypatch.setattr(PipelineSession, "returned", returned)
    job._checked = Checked(reads=["partition"], columns=EVENT_SCHEMA, why_not_shared=None, range_reads=RangeReads())
    batch = RangedBatch("a", 1, (EventRange(None, "9", 9),), 0.0)
    table, _ = await job.run_ranged(batch, Unread(), None, 1234)
    assert (table.num_rows, [task.returned_bytes_max for task in tasks]) == (0, [1234])
    assert [len(each.modules) for each in server.sessions[1:]] == [1, 1], "the function's own, in each session"


class Unread(RangeReader):
    def read_range(self, partition: str, planned: EventRange) -> Iterator[pa.Table]:
        raise AssertionError("no executor runs")


async def test_a_server_that_freezes_at_the_first_check_is_given_up(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.is_frozen = True
    with impatient(monkeypatch), pytest.raises(EngineUnavailable, match=r"has not answered for 0\.1 s"):
        await SparkJob(server.engine, spec(sql="SELECT * FROM events")).check()
    assert server.outlasted == []


def test_a_job_that_waited_for_a_view_does_not_begin_once_its_caller_is_gone(server: Server) -> None:
    own, collected = cast(PipelineSession, SimpleNamespace(views=threading.Lock())), list[object]()
    run = Run("a-1", own=own, is_wanted=False)
    with pytest.raises(EngineUnavailable, match="'a-1' was cancelled before it began"):
        SparkJob(server.engine, spec(sql="a"))._run(run, cast(Any, None), collected.append)  # type: ignore[arg-type]
    assert collected == []
