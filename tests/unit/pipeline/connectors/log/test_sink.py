"""The log as a sink: the contract, and Protocol F under lost documents, zombies and failing disks."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.pipeline.connectors.log.blocks import blocks_in

from leasehold.pipeline.connectors.log import LogOutputSink
from leasehold.pipeline.connectors.log.partition_file import LogUncertain
from leasehold.pipeline.connectors.log.store import Log, PartitionLog
from leasehold.pipeline.contract import Row, SinkContract, SinkHarness, body, event_table
from leasehold.pipeline.errors import Ambiguous, Fenced, NotTrusted, SinkRejected, SinkUnavailable
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.markers import marker_in
from leasehold.pipeline.producer import LEVEL_MAX, ProducerState, decoded
from leasehold.pipeline.publishing_writer import events_of
from leasehold.pipeline.sink import Claim, Output
from leasehold.pipeline.tracing import TraceContext


def bodies_in(path: Path, partition: str) -> list[Any]:
    return [event for block in blocks_in(path, partition) for event in block.events["body"].to_pylist()]


class LogSinkHarness(SinkHarness):
    partitions = ("a", "b")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sinks: list[LogOutputSink] = []

    async def sink(self) -> LogOutputSink:
        self.sinks.append(LogOutputSink(self.path))
        await self.sinks[-1].prepare()
        return self.sinks[-1]

    async def rows(self, partition: str) -> list[Row]:
        rows = []
        for block in blocks_in(self.path, partition):
            marker = marker_in(json.loads(block.marker or "{}"))
            assert marker is not None
            rows += [
                Row(int(json.loads(b)["number"]), marker.start, marker.to) for b in block.events["body"].to_pylist()
            ]
        return rows


class TestLogSink(SinkContract):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[SinkHarness]:
        harness = LogSinkHarness(tmp_path / "log")
        yield harness
        for sink in harness.sinks:
            await sink.close()


class Permit:
    def __init__(self, *, trusted: Callable[[], bool] = lambda: True) -> None:
        self._trusted = trusted

    def check(self) -> None:
        if not self._trusted():
            raise NotTrusted("the trust window is closed")

    async def wait_until_granted(self) -> None:
        self.check()


def claim(state: str = "", *, generation: int = 0, continuation: str | None = None, partition: str = "p") -> Claim:
    return Claim(
        pipeline="bank",
        partition=partition,
        owner="host",
        epoch=1,
        generation=generation,
        continuation=continuation,
        state=state,
        compare=lambda a, b: int(a or 0) - int(b or 0),
    )


def output(start: int, to: int, partition: str = "p") -> Output:
    table = event_table(partition, range(start + 1, to + 1))
    return Output(table=table, start=str(start) if start else None, to=str(to), events=to - start)


def output_of(table: pa.Table) -> Output:
    return Output(table=table, start=None, to="1", events=1)


@pytest.fixture
async def sinks(tmp_path: Path) -> AsyncIterator[Callable[..., LogOutputSink]]:
    """Sinks over one log, each as a process of its own would have it; closed at the end."""
    made: list[LogOutputSink] = []
    Log(tmp_path).prepare()

    def make(**settings: Any) -> LogOutputSink:
        made.append(LogOutputSink(tmp_path, **settings))
        return made[-1]

    yield make
    for sink in made:
        await sink.close()


# What is written


async def test_columns_become_events_in_the_order_of_their_sequence(
    tmp_path: Path, sinks: Callable[..., LogOutputSink]
) -> None:
    sink = sinks()
    writer = await sink.open(claim(sink.claimed("")))
    table = pa.table(
        {
            "sequence": [3, 1, 2, 2],
            "partition": ["p"] * 4,
            "key": pa.array(["c", None, "b1", "b2"], pa.large_string()),
            "body": pa.array(["3", "1", None, "é"]),
            "properties": pa.array(
                [[("x", "1"), ("leasehold-to", "9")], None, [], [("leasehold-lease", "z")]],
                pa.map_(pa.string(), pa.string()),
            ),
            "operation": pa.nulls(4),
        }
    )
    await writer.write(output_of(table), Permit())
    (block,) = blocks_in(tmp_path, "p")
    assert block.events.to_pylist() == [
        {"key": None, "body": b"1", "properties": None, "operation": None},
        {"key": "b1", "body": None, "properties": [], "operation": None},
        {"key": "b2", "body": "é".encode(), "properties": [], "operation": None},
        {"key": "c", "body": b"3", "properties": [("x", "1")], "operation": None},
    ]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (
            pa.table({"body": ["x"], "account": ["a"], "amount": [1]}),
            "has 'account', 'amount': a log takes the columns body",
        ),
        (pa.table({"key": ["x"]}), "has no 'body'"),
        (pa.table([["x"], ["y"]], names=["body", "body"]), "has 'body'"),
        (pa.table({"body": [1]}), "'body' is int64, and a log takes STRING or BINARY: cast it"),
        (pa.table({"body": ["x"], "key": [1]}), "'key' is int64"),
        (pa.table({"body": ["x"], "properties": ["y"]}), "'properties' is string"),
    ],
)
async def test_output_that_is_no_events_is_rejected(
    tmp_path: Path, sinks: Callable[..., LogOutputSink], table: pa.Table, says: str
) -> None:
    sink = sinks()
    writer = await sink.open(claim(sink.claimed("")))
    with pytest.raises(SinkRejected, match=says):
        await writer.write(output_of(table), Permit())
    assert (writer.position, blocks_in(tmp_path, "p")) == (None, [])


async def test_output_too_large_for_one_append_is_rejected_with_the_setting_to_lower(
    tmp_path: Path, sinks: Callable[..., LogOutputSink]
) -> None:
    sink = sinks(batch_bytes_max=1000)
    writer = await sink.open(claim(sink.claimed("")))
    with pytest.raises(SinkRejected, match="lower the pipeline's batch_events_max or batch_bytes_max"):
        await writer.write(output(0, 100), Permit())
    await writer.write(output(0, 1), Permit())
    assert bodies_in(tmp_path, "p") == [body(1)]


# Positions


TRACE = TraceContext(f"00-{7:032x}-{1:016x}-01", "k=v")
IN_PROPERTIES = [*TRACE.properties.items()]


def properties_in(path: Path, partition: str) -> list[Any]:
    return [pairs for block in blocks_in(path, partition) for pairs in block.events["properties"].to_pylist()]


async def test_events_bear_the_context_they_are_published_with_instead_of_an_earlier_one(
    tmp_path: Path, sinks: Callable[..., LogOutputSink]
) -> None:
    sink = sinks()
    writer = await sink.open(claim(sink.claimed("")))
    properties = pa.array(
        [[("own", "1"), ("traceparent", "x"), ("Diagnostic-Id", "x")], None], EVENT_SCHEMA.field("properties").type
    )
    table = pa.table({"body": ["a", "b"], "properties": properties})
    await writer.write(replace(output_of(table), trace=TRACE), Permit())
    assert properties_in(tmp_path, "p") == [[("own", "1"), *IN_PROPERTIES], IN_PROPERTIES]


async def test_without_a_trace_properties_are_published_as_they_are(
    tmp_path: Path, sinks: Callable[..., LogOutputSink]
) -> None:
    sink = sinks()
    writer = await sink.open(claim(sink.claimed("")))
    properties = pa.array([[("traceparent", "x")], None], EVENT_SCHEMA.field("properties").type)
    await writer.write(output_of(pa.table({"body": ["a", "b"], "properties": properties})), Permit())
    assert properties_in(tmp_path, "p") == [[("traceparent", "x")], None]


async def test_a_trace_makes_no_output_too_large(sinks: Callable[..., LogOutputSink]) -> None:
    table = pa.table({"body": ["x" * 100] * 100})
    limit = events_of(table, "a log").nbytes
    sink = sinks(batch_bytes_max=limit)
    writer = await sink.open(claim(sink.claimed("")))
    await writer.write(replace(output_of(table), trace=TRACE), Permit())
    assert writer.position == "1"


async def test_events_that_are_sent_again_after_a_crash_are_there_once_whatever_their_traces(
    tmp_path: Path, sinks: Callable[..., LogOutputSink]
) -> None:
    first = sinks()
    state = first.claimed("")
    writer = await first.open(claim(state))
    await writer.write(replace(output(0, 2), trace=TRACE), Permit())  # and its host dies before a checkpoint
    second = sinks()
    writer = await second.open(claim(second.claimed(state)))
    assert writer.position == "2"
    await writer.write(replace(output(2, 3), trace=TraceContext(f"00-{8:032x}-{1:016x}-01")), Permit())
    assert [json.loads(each)["number"] for each in bodies_in(tmp_path, "p")] == ["1", "2", "3"]


async def test_the_lease_is_further_than_the_marker_where_empty_outputs_moved_it(
    sinks: Callable[..., LogOutputSink],
) -> None:
    sink = sinks()
    writer = await sink.open(claim(sink.claimed("")))
    await writer.write(output(0, 9), Permit())
    for continuation, position in ((None, "9"), ("8", "9"), ("10", "10")):
        again = await sink.open(claim(sink.claimed(writer.state), continuation=continuation))
        assert again.position == position
        writer = again


async def test_a_position_outlives_the_retention_of_its_events(
    tmp_path: Path, sinks: Callable[..., LogOutputSink]
) -> None:
    sink = sinks(retention_bytes=1)
    writer = await sink.open(claim(sink.claimed("")))
    await writer.write(output(0, 3), Permit())
    another = await sink.open(replace(claim(sink.claimed("")), pipeline="another"))
    await another.write(output(0, 1), Permit())
    assert bodies_in(tmp_path, "p") == [body(1)]
    assert (await sink.open(claim(sink.claimed(writer.state)))).position == "3"


async def test_a_log_that_was_deleted_stops_the_lease_until_it_is_reset(
    tmp_path: Path, sinks: Callable[..., LogOutputSink]
) -> None:
    sink = sinks()
    writer = await sink.open(claim(sink.claimed("")))
    await writer.write(output(0, 1), Permit())
    state = sink.claimed(writer.state)
    emptied(tmp_path)
    with pytest.raises(SinkUnavailable):
        await writer.write(output(1, 2), Permit())
    with pytest.raises(SinkRejected, match="ends at -1, and this lease has seen it end at 0") as lost:
        await sink.open(claim(state, continuation="1"))
    assert "`leasehold leases reset FILE bank p --to earliest --yes`" in str(lost.value)
    with pytest.raises(Fenced):
        await writer.write(output(1, 2), Permit())
    writer = await sink.open(claim(sink.claimed(state), generation=1, continuation="1"))
    await writer.write(output(1, 2), Permit())
    assert bodies_in(tmp_path, "p") == [body(2)]


# Claims


async def test_a_lease_document_that_lost_its_generation_is_not_followed(
    tmp_path: Path, sinks: Callable[..., LogOutputSink]
) -> None:
    sink = sinks()
    writer = await sink.open(claim(sink.claimed(""), generation=0))
    await writer.write(output(0, 1), Permit())
    writer = await sink.open(claim(sink.claimed(writer.state), generation=1, continuation="5"))
    await writer.write(output(5, 6), Permit())
    with pytest.raises(Fenced) as fenced:
        await sink.open(claim(sink.claimed(""), generation=0))
    with pytest.raises(
        SinkRejected, match=r"generation 0, and the log holds output of its generation 1: .* Reset the lease"
    ):
        await sink.open(claim(sink.claimed(fenced.value.state or ""), generation=0))
    await writer.write(output(6, 7), Permit())
    assert bodies_in(tmp_path, "p") == [body(1), body(6), body(7)]


async def test_a_claim_that_comes_after_a_reset_is_refused_though_it_was_never_seen(
    sinks: Callable[..., LogOutputSink],
) -> None:
    sink = sinks()
    late = sink.claimed("")
    writer = await sink.open(claim(sink.claimed(late), generation=1, continuation="5"))
    with pytest.raises(Fenced):
        await sink.open(claim(late, generation=0))
    await writer.write(output(5, 6), Permit())


async def test_when_levels_are_used_up_the_next_group_goes_on_and_closes_the_last(
    tmp_path: Path, sinks: Callable[..., LogOutputSink]
) -> None:
    sink = sinks()
    last = await sink.open(claim(ProducerState(level=LEVEL_MAX).encoded()))
    await last.write(output(0, 2), Permit())
    state = sink.claimed(last.state)
    assert (decoded(state).series, decoded(state).level) == (1, 1)
    writer = await sink.open(claim(state))
    assert writer.position == "2"
    assert decoded(writer.state).group != decoded(last.state).group
    with pytest.raises(Fenced) as fenced:
        await last.write(output(2, 3), Permit())
    assert (decoded(fenced.value.state or "").series, decoded(fenced.value.state or "").level) == (1, 1)
    await writer.write(output(2, 4), Permit())
    assert bodies_in(tmp_path, "p") == [body(n) for n in range(1, 5)]


async def test_a_level_that_a_restored_document_gives_out_again_is_refused_and_outranked(
    tmp_path: Path, sinks: Callable[..., LogOutputSink]
) -> None:
    sink, state = sinks(), sinks().claimed("")
    one = await sink.open(claim(state))
    with pytest.raises(Fenced) as fenced:
        await sinks().open(claim(state))
    await one.write(output(0, 2), Permit())
    two = await sinks().open(claim(sink.claimed(fenced.value.state or "")))
    with pytest.raises(Fenced):
        await one.write(output(2, 3), Permit())
    await two.write(output(2, 4), Permit())
    assert bodies_in(tmp_path, "p") == [body(n) for n in range(1, 5)]


@pytest.mark.parametrize("state", ["x", "{}", "[]", '{"group":null,"series":0,"level":32767,"number":0,"tail":-1}'])
async def test_a_sink_state_that_nobody_wrote_is_rejected_with_what_to_do(
    sinks: Callable[..., LogOutputSink], state: str
) -> None:
    sink = sinks()
    with pytest.raises(SinkRejected, match="set the document's sinkState to an empty text"):
        sink.claimed(state)
    with pytest.raises(SinkRejected):
        await sink.open(claim(state))


async def test_sequence_numbers_wrap_and_are_still_recognised(
    tmp_path: Path, sinks: Callable[..., LogOutputSink]
) -> None:
    sink = sinks()
    writer = await sink.open(claim(sink.claimed("")))
    with closing(sqlite3.connect(tmp_path / "p.db")) as connection:
        connection.execute("UPDATE producers SET number = ?", (2**31 - 3,))
        connection.commit()
    writer._state = replace(writer._state, number=2**31 - 3)
    for start in range(0, 8, 2):
        await writer.write(output(start, start + 2), Permit())
    assert decoded(writer.state).number == 5
    assert bodies_in(tmp_path, "p") == [body(n) for n in range(1, 9)]


# Trust, cancellation, and disks that fail


async def test_trust_that_runs_out_on_the_way_to_the_disk_keeps_the_batch_back(
    tmp_path: Path, sinks: Callable[..., LogOutputSink]
) -> None:
    sink = sinks()
    writer = await sink.open(claim(sink.claimed("")))
    answers = iter([True, False])
    with pytest.raises(NotTrusted):
        await writer.write(output(0, 1), Permit(trusted=lambda: next(answers)))
    assert (writer.position, bodies_in(tmp_path, "p")) == (None, [])
    await writer.write(output(0, 1), Permit())
    assert bodies_in(tmp_path, "p") == [body(1)]


class Disk:
    """Commits that fail on their way: `plan` says for each whether it happened. None, and after the plan: all is well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, plan: Iterable[str | None] = ()) -> None:
        self._plan = iter(plan)
        self._well = PartitionLog._commit
        monkeypatch.setattr(PartitionLog, "_commit", lambda log, connection: self._commit(log, connection))

    def plan(self, plan: Iterable[str | None]) -> None:
        self._plan = iter(plan)

    def _commit(self, log: PartitionLog, connection: sqlite3.Connection) -> None:
        fault = next(self._plan, None)
        if fault != "lost":
            self._well(log, connection)
        if fault is not None:
            raise LogUncertain("the commit failed (disk I/O error)")


@pytest.mark.parametrize("fault", ["lost", "done"])
async def test_an_uncertain_commit_is_settled_by_sending_the_same_again(
    tmp_path: Path, sinks: Callable[..., LogOutputSink], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    sink = sinks()
    writer = await sink.open(claim(sink.claimed("")))
    disk = Disk(monkeypatch, [fault, fault])
    await writer.write(output(0, 2), Permit())
    disk.plan([fault])
    await writer.write(output(2, 3), Permit())
    assert (writer.position, bodies_in(tmp_path, "p")) == ("3", [body(1), body(2), body(3)])


@pytest.mark.parametrize("fault", ["lost", "done"])
@pytest.mark.parametrize("checks", [2, 100])
async def test_what_cannot_be_settled_is_ambiguous_and_left_to_the_next_claim(
    tmp_path: Path, sinks: Callable[..., LogOutputSink], monkeypatch: pytest.MonkeyPatch, fault: str, checks: int
) -> None:
    sink = sinks()
    writer = await sink.open(claim(sink.claimed("")))
    disk = Disk(monkeypatch, [fault] * 9)
    trusted = iter([True] * checks)
    with pytest.raises(Ambiguous):
        await writer.write(output(0, 2), Permit(trusted=lambda: fault == "done" or next(trusted, False)))
    disk.plan([])
    again = await sink.open(claim(sink.claimed(writer.state)))
    assert again.position == ("2" if fault == "done" else None)
    with pytest.raises(Fenced):
        await writer.write(output(0, 2), Permit())
    assert bodies_in(tmp_path, "p") == ([body(1), body(2)] if fault == "done" else [])


async def test_a_disk_that_is_full_is_unavailable_until_there_is_room(
    tmp_path: Path, sinks: Callable[..., LogOutputSink]
) -> None:
    sink = sinks()
    writer = await sink.open(claim(sink.claimed("")))
    assert writer._log._open is not None
    connection = writer._log._open[0]
    ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
    connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    with pytest.raises(SinkUnavailable, match=r"p\.db' cannot be used .*: the disk is full: free some space"):
        await writer.write(output(0, 2000), Permit())
    assert bodies_in(tmp_path, "p") == []
    connection.execute("PRAGMA max_page_count = 100000").fetchall()
    await writer.write(output(0, 2000), Permit())
    assert len(bodies_in(tmp_path, "p")) == 2000


async def test_a_log_that_cannot_be_written_is_unavailable(sinks: Callable[..., LogOutputSink]) -> None:
    sink = sinks()
    writer = await sink.open(claim(sink.claimed("")))
    assert writer._log._open is not None
    writer._log._open[0].execute("PRAGMA query_only = 1")
    with pytest.raises(SinkUnavailable, match="it is read-only: let this process write"):
        await writer.write(output(0, 1), Permit())


async def test_a_writer_that_is_stuck_in_a_write_keeps_others_out_for_a_time_only(
    tmp_path: Path, sinks: Callable[..., LogOutputSink]
) -> None:
    sink = sinks(busy_timeout_s=0.05)
    writer = await sink.open(claim(sink.claimed("")))
    with closing(sqlite3.connect(tmp_path / "p.db", isolation_level=None)) as stuck:
        stuck.execute("BEGIN IMMEDIATE")
        with pytest.raises(SinkUnavailable, match="another process keeps it locked"):
            await writer.write(output(0, 1), Permit())
    await writer.write(output(0, 1), Permit())
    assert bodies_in(tmp_path, "p") == [body(1)]


async def test_a_write_that_is_cancelled_while_it_waits_for_the_lock_never_happens(
    tmp_path: Path, sinks: Callable[..., LogOutputSink]
) -> None:
    sink = sinks(busy_timeout_s=20)
    writer = await sink.open(claim(sink.claimed("")))
    asked = asyncio.Event()

    def trusted() -> bool:
        asked.set()
        return True

    with closing(sqlite3.connect(tmp_path / "p.db", isolation_level=None)) as stuck:
        stuck.execute("BEGIN IMMEDIATE")
        write = asyncio.create_task(writer.write(output(0, 1), Permit(trusted=trusted)))
        await asked.wait()
        write.cancel()
        with pytest.raises(asyncio.CancelledError):
            await write
    again = await sink.open(claim(sink.claimed(writer.state)))
    assert (again.position, bodies_in(tmp_path, "p")) == (None, [])


# Any order of things


FAULTS = st.sampled_from([None, None, None, "lost", "done"])
STEP = st.tuples(
    st.sampled_from(["write", "write", "write", "checkpoint", "steal", "crash"]),
    st.integers(0, 1),
    st.integers(1, 3),
    st.lists(FAULTS, max_size=4),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, max_size=25))
def test_two_owners_with_crashes_and_retries_deliver_each_event_once(tmp_path: Path, steps: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        emptied(tmp_path)
        asyncio.run(delivered(tmp_path, Disk(monkeypatch), steps))


async def delivered(path: Path, disk: Disk, steps: list[Any]) -> None:
    sinks = [LogOutputSink(path) for _ in range(2)]
    state, continuation = "", None  # the lease document
    writers: list[Any] = [None, None]
    owner = -1

    async def taken(by: int) -> None:
        nonlocal state, owner
        state, owner = sinks[by].claimed(state), by
        with suppress(SinkUnavailable):
            writers[by] = await sinks[by].open(claim(state, continuation=continuation))
            return
        writers[by] = None

    for act, who, count, faults in steps:
        disk.plan(faults)
        writer = writers[who]
        if act == "steal":
            await taken(who)
        elif act == "crash":
            writers[who] = None
        elif writer is not None and act == "checkpoint":
            if owner == who:
                state, continuation = writer.state, writer.position
        elif writer is not None:
            start = int(writer.position or 0)
            try:
                await writer.write(output(start, start + count), Permit())
            except (Fenced, Ambiguous):
                writers[who] = None
    disk.plan([])
    await taken(0)
    end = int(writers[0].position or 0)
    await writers[0].write(output(end, end + 1), Permit())
    assert bodies_in(path, "p") == [body(n) for n in range(1, end + 2)]
    for sink in sinks:
        await sink.close()


async def test_a_destination_is_where_it_is_whoever_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert LogOutputSink("x/../log").identity == LogOutputSink(tmp_path / "log").identity == f"log:{tmp_path}/log"


def emptied(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()
