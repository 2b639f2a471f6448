"""Group commit, over a job that doubles numbers in this process; tests/integration has Spark do it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from patience import until_async

from leasehold.common.clock import LoopClock
from leasehold.pipeline.batch import Batch
from leasehold.pipeline.errors import EngineUnavailable, FailsTogether, Poison, PoisonEvent, TransformError
from leasehold.pipeline.event import EVENT_SCHEMA, Page
from leasehold.pipeline.limits import Isolation
from leasehold.pipeline.poison import JobFailed, Prepared, Refused, Slice
from leasehold.pipeline.spark.micro_batch import MicroBatches, MicroBatchLimits, split


def batch_of(partition: str, keys: str, pages: int = 1) -> Batch:
    """A batch of one event for each letter, dealt out to pages."""
    rows = [
        {
            "partition": partition,
            "sequence": sequence,
            "offset": str(sequence),
            "enqueued_time": datetime(2026, 1, 1, tzinfo=UTC),
            "key": key,
        }
        for sequence, key in enumerate(keys)
    ]
    table = pa.Table.from_pylist(rows, schema=EVENT_SCHEMA)
    size = -(-len(rows) // pages)
    cuts = [Page(table.slice(start, size), str(start)) for start in range(0, max(len(rows), 1), size or 1)]
    return Batch(partition, None, tuple(cuts), 0.0)


class Jobs:
    """Answers with `made` of all events together, once `gate` is open."""

    def __init__(self, made: Callable[[pa.Table], pa.Table] = lambda events: events) -> None:
        self.made = made
        self.runs: list[list[str]] = []
        self.cancelled: list[list[str]] = []
        self.now = 0
        self.most = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def prepare(self, slice: Slice) -> Prepared:
        return Prepared(slice, slice.table)

    async def run(self, slices: Sequence[Prepared]) -> list[pa.Table | Refused]:
        partitions = [each.slice.partition for each in slices]
        self.runs.append(partitions)
        with self._counted():
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.append(partitions)
                raise
            events = [each.events for each in slices if each.events is not None]
            return self.answers(split(self.made(pa.concat_tables(events)), partitions))

    def answers(self, outputs: list[pa.Table]) -> list[pa.Table | Refused]:
        return list(outputs)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            yield
        finally:
            self.now -= 1


def keys(table: pa.Table) -> str:
    return "".join(table.column("key").to_pylist())


async def test_batches_that_become_ready_together_share_one_job() -> None:
    jobs = Jobs()
    batches = MicroBatches(jobs, shares_jobs=True)
    outputs = await asyncio.gather(*(batches.apply(batch_of(p, k)) for p, k in (("0", "ab"), ("1", "c"), ("2", "de"))))
    assert jobs.runs == [["0", "1", "2"]]
    assert [keys(output) for output in outputs] == ["ab", "c", "de"]


async def test_batches_that_may_not_share_have_a_job_each() -> None:
    jobs = Jobs()
    batches = MicroBatches(jobs, shares_jobs=False)
    await asyncio.gather(*(batches.apply(batch_of(str(p), "a")) for p in range(3)))
    assert jobs.runs == [["0"], ["1"], ["2"]]


async def test_no_more_jobs_run_at_a_time_than_allowed_and_what_waits_meanwhile_shares_the_next() -> None:
    jobs = Jobs()
    jobs.gate.clear()
    batches = MicroBatches(jobs, shares_jobs=True, limits=MicroBatchLimits(jobs_max=2))
    async with asyncio.TaskGroup() as group:
        for partition in range(5):
            group.create_task(batches.apply(batch_of(str(partition), "a")))
            await until_async(lambda p=partition: len(jobs.runs) == min(p + 1, 2))
        jobs.gate.set()
    assert jobs.runs == [["0"], ["1"], ["2", "3", "4"]]
    assert jobs.most == 2


async def test_two_batches_of_one_partition_never_share_a_job() -> None:
    jobs = Jobs()
    batches = MicroBatches(jobs, shares_jobs=True)
    first, other, second = await asyncio.gather(
        batches.apply(batch_of("0", "ab")), batches.apply(batch_of("1", "x")), batches.apply(batch_of("0", "cd"))
    )
    assert jobs.runs == [["0", "1"], ["0"]]
    assert [keys(first), keys(other), keys(second)] == ["ab", "x", "cd"]


async def test_a_group_is_bounded_in_bytes_and_a_batch_that_is_larger_goes_alone() -> None:
    jobs = Jobs()
    size = batch_of("0", "a" * 100).bytes
    limits = MicroBatchLimits(group_bytes_max=2 * size + size // 2, jobs_max=1)
    batches = MicroBatches(jobs, shares_jobs=True, limits=limits)
    sizes = {"0": 100, "1": 100, "2": 100, "3": 1000, "4": 100}
    await asyncio.gather(*(batches.apply(batch_of(p, "a" * n)) for p, n in sizes.items()))
    assert jobs.runs == [["0", "1"], ["2", "4"], ["3"]]


async def test_a_group_is_as_large_as_what_the_engine_receives_of_its_batches() -> None:
    class Parsed(Jobs):
        async def prepare(self, slice: Slice) -> Prepared:
            return Prepared(slice, slice.table.select(["partition", "sequence", "key"]))

    size = batch_of("0", "a" * 100).bytes
    jobs = Parsed()
    batches = MicroBatches(jobs, shares_jobs=True, limits=MicroBatchLimits(group_bytes_max=size, jobs_max=1))
    await asyncio.gather(*(batches.apply(batch_of(p, "a" * 100)) for p in "01"))
    assert jobs.runs == [["0", "1"]]


async def test_a_batch_that_is_prepared_while_the_transform_is_closed_is_not_run() -> None:
    class Slow(Jobs):
        async def prepare(self, slice: Slice) -> Prepared:
            await batches.close()
            return Prepared(slice, slice.table)

    jobs = Slow()
    batches = MicroBatches(jobs, shares_jobs=True)
    with pytest.raises(EngineUnavailable, match="closed"):
        await batches.apply(batch_of("0", "a"))
    assert jobs.runs == []


async def test_a_cancelled_batch_that_waits_is_dropped() -> None:
    jobs = Jobs()
    jobs.gate.clear()
    batches = MicroBatches(jobs, shares_jobs=True, limits=MicroBatchLimits(jobs_max=1))
    running = asyncio.create_task(batches.apply(batch_of("0", "a")))
    await until_async(lambda: len(jobs.runs) == 1)
    dropped, kept = (asyncio.create_task(batches.apply(batch_of(p, "a"))) for p in "12")
    await asyncio.sleep(0)
    dropped.cancel()
    jobs.gate.set()
    await asyncio.gather(running, kept)
    assert jobs.runs == [["0"], ["2"]]


async def test_a_job_goes_on_while_anybody_wants_a_part_of_it() -> None:
    jobs = Jobs()
    jobs.gate.clear()
    batches = MicroBatches(jobs, shares_jobs=True)
    leaves, stays = (asyncio.create_task(batches.apply(batch_of(p, "a"))) for p in "01")
    await until_async(lambda: jobs.runs == [["0", "1"]])
    leaves.cancel()
    await asyncio.gather(leaves, return_exceptions=True)
    jobs.gate.set()
    assert keys(await stays) == "a"
    assert jobs.cancelled == []


async def test_a_job_that_nobody_wants_is_cancelled_and_makes_room() -> None:
    jobs = Jobs()
    jobs.gate.clear()
    batches = MicroBatches(jobs, shares_jobs=True, limits=MicroBatchLimits(jobs_max=1))
    leaving = [asyncio.create_task(batches.apply(batch_of(p, "a"))) for p in "01"]
    await until_async(lambda: jobs.runs == [["0", "1"]])
    for task in leaving:
        task.cancel()
    await until_async(lambda: jobs.cancelled == [["0", "1"]])
    jobs.gate.set()
    assert keys(await batches.apply(batch_of("2", "b"))) == "b"


def failing_on(letter: str) -> Callable[[pa.Table], pa.Table]:
    def made(events: pa.Table) -> pa.Table:
        if letter in events.column("key").to_pylist():
            raise JobFailed(f"no {letter} here")
        return events

    return made


async def test_one_partitions_poison_costs_no_other_its_output() -> None:
    batches = MicroBatches(Jobs(failing_on("!")), shares_jobs=True)
    outputs = await asyncio.gather(
        *(batches.apply(batch_of(p, k)) for p, k in (("0", "ab"), ("1", "cd!ef"), ("2", "g"))), return_exceptions=True
    )
    assert [keys(outputs[0]), keys(outputs[2])] == ["ab", "g"]
    poison = outputs[1]
    assert isinstance(poison, PoisonEvent)
    assert (poison.before, poison.sequence, poison.events) == (2, 2, 1)
    assert str(poison).startswith("partition '1', sequence 2: no ! here: correct the event")


async def test_the_first_of_several_poison_events_is_the_one_that_is_told() -> None:
    with pytest.raises(PoisonEvent) as caught:
        await MicroBatches(Jobs(failing_on("!")), shares_jobs=True).apply(batch_of("0", "a!b!c!", pages=3))
    assert caught.value.before == 1


class Knowing(Jobs):
    """Tells at once which events of partition 1 are to blame."""

    def answers(self, outputs: list[pa.Table]) -> list[pa.Table | Refused]:
        poison = Poison(index=3, reason="column 'a' is missing or null", is_misfit=True)
        return [Refused((poison,), output) if n == 1 else output for n, output in enumerate(outputs)]


async def test_an_engine_that_knows_the_event_is_believed_and_others_keep_their_output() -> None:
    jobs = Knowing()
    batches = MicroBatches(jobs, shares_jobs=True)
    given = (batches.apply(batch_of(p, "abcde", pages=2)) for p in "012")
    first, error, last = await asyncio.gather(*given, return_exceptions=True)
    assert isinstance(error, PoisonEvent)
    assert str(error).startswith("partition '1', sequence 3: column 'a' is missing or null: correct the event")
    assert (error.before, [each.index for each in error.found]) == (3, [3])
    assert error.output is not None
    assert [keys(first), keys(error.output), keys(last)] == ["abcde"] * 3
    assert len(jobs.runs) == 1


async def test_as_much_poison_is_told_at_once_as_was_asked_for() -> None:
    batches = MicroBatches(Jobs(failing_on("!")), shares_jobs=True, isolation=Isolation(most=3))
    with pytest.raises(PoisonEvent) as caught:
        await batches.apply(batch_of("0", "a!b!!c!d", pages=3))
    assert [(each.index, each.reason) for each in caught.value.found] == [(n, "no ! here") for n in (1, 3, 4)]


async def test_events_that_fail_only_together_are_told_where_to_be_cut() -> None:
    def made(events: pa.Table) -> pa.Table:
        if {"x", "y"} <= set(events.column("key").to_pylist()):
            raise JobFailed("x and y do not go together")
        return events

    with pytest.raises(FailsTogether, match="events that fail only together: x and y do not") as caught:
        await MicroBatches(Jobs(made), shares_jobs=True).apply(batch_of("0", "abxcdeyf"))
    assert (caught.value.before, caught.value.events, caught.value.cut) == (0, 8, 4)


async def test_an_event_that_fails_alone_is_tried_again_after_a_growing_pause() -> None:
    pauses: list[float] = []

    class Clock(LoopClock):
        async def sleep(self, seconds: float) -> None:
            pauses.append(seconds)

    isolation = Isolation(attempts=4, backoff_s=0.5)
    batches = MicroBatches(Jobs(failing_on("!")), shares_jobs=True, isolation=isolation, clock=Clock())
    with pytest.raises(PoisonEvent) as caught:
        await batches.apply(batch_of("0", "!"))
    assert pauses == [0.5, 1.0, 2.0]
    assert caught.value.found[0].attempts == 4


async def test_a_transform_that_fails_on_nothing_at_all_is_wrong_itself() -> None:
    def made(events: pa.Table) -> pa.Table:
        raise JobFailed("division by zero")

    with pytest.raises(TransformError, match="fails whatever the events are: division by zero"):
        await MicroBatches(Jobs(made), shares_jobs=True).apply(batch_of("0", "abc"))


async def test_a_failure_that_goes_away_may_be_tried_again() -> None:
    failures = iter([True])

    def made(events: pa.Table) -> pa.Table:
        if next(failures, False):
            raise JobFailed("the moon")
        return events

    with pytest.raises(EngineUnavailable, match="failed once and did not fail again: the moon"):
        await MicroBatches(Jobs(made), shares_jobs=True).apply(batch_of("0", "a"))


async def test_a_dead_engine_is_no_evidence_of_poison() -> None:
    def made(events: pa.Table) -> pa.Table:
        raise EngineUnavailable("gone")

    jobs = Jobs(made)
    batches = MicroBatches(jobs, shares_jobs=True)
    outputs = await asyncio.gather(*(batches.apply(batch_of(p, "a")) for p in "01"), return_exceptions=True)
    assert [type(output) for output in outputs] == [EngineUnavailable, EngineUnavailable]
    assert jobs.runs == [["0", "1"]]


async def test_an_engine_that_dies_during_the_search_leaves_the_event_unblamed() -> None:
    calls = iter(["failed", "dead"])

    def made(events: pa.Table) -> pa.Table:
        raise JobFailed("bad") if next(calls) == "failed" else EngineUnavailable("gone")

    with pytest.raises(EngineUnavailable):
        await MicroBatches(Jobs(made), shares_jobs=True).apply(batch_of("0", "abc"))


async def test_rows_of_a_foreign_partition_are_refused() -> None:
    def made(events: pa.Table) -> pa.Table:
        return events.set_column(0, EVENT_SCHEMA.field(0), pa.array(["9"] * events.num_rows))

    with pytest.raises(TransformError, match=r"rows of partition '9', which is not among its input's \('0'\)"):
        await MicroBatches(Jobs(made), shares_jobs=False).apply(batch_of("0", "ab"))


async def test_closing_ends_the_jobs_and_tells_who_waits() -> None:
    jobs = Jobs()
    jobs.gate.clear()
    batches = MicroBatches(jobs, shares_jobs=False, limits=MicroBatchLimits(jobs_max=1))
    waiting = [asyncio.create_task(batches.apply(batch_of(p, "a"))) for p in "01"]
    await until_async(lambda: jobs.runs == [["0"]])
    await batches.close()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [EngineUnavailable, EngineUnavailable]
    assert jobs.cancelled == [["0"]]
    with pytest.raises(EngineUnavailable):
        await batches.apply(batch_of("2", "a"))


def output_of(**columns: list[object]) -> pa.Table:
    return pa.table(columns)


def test_each_partition_gets_its_rows_by_sequence() -> None:
    output = output_of(partition=["1", "0", "1", "0"], sequence=[4, 9, 2, 7], x=["d", "c", "b", "a"])
    first, none, second = split(output, ["0", "none", "1"])
    assert first.to_pydict() == {"partition": ["0", "0"], "sequence": [7, 9], "x": ["a", "c"]}
    assert none.num_rows == 0
    assert none.schema == output.schema
    assert second.column("x").to_pylist() == ["b", "d"]


def test_rows_of_one_sequence_keep_their_order() -> None:
    output = output_of(partition=["0"] * 4, sequence=[2, 1, 2, 1], x=["c", "a", "d", "b"])
    assert split(output, ["0"])[0].column("x").to_pylist() == ["a", "b", "c", "d"]


def test_output_without_a_sequence_keeps_its_order() -> None:
    assert split(output_of(partition=["0", "1", "0"], x=[3, 1, 2]), ["0", "1"])[0].column("x").to_pylist() == [3, 2]


def test_a_row_without_a_partition_is_refused() -> None:
    with pytest.raises(TransformError, match="rows of partition None"):
        split(output_of(partition=["0", None], x=[1, 2]), ["0"])


@pytest.mark.parametrize("start", range(6))
@pytest.mark.parametrize("stop", range(6))
def test_a_slice_is_the_same_however_the_batch_is_paged(start: int, stop: int) -> None:
    whole, paged = batch_of("0", "abcde"), batch_of("0", "abcde", pages=3)
    assert keys(Slice(paged, range(start, stop)).table) == "abcde"[start:stop]
    assert Slice(paged, range(start, stop)).table == Slice(whole, range(start, stop)).table
