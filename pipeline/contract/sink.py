"""The contract of sinks, as tests over a harness."""

from __future__ import annotations

import asyncio
import pickle
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, get_args
from uuid import uuid4

import pyarrow as pa
import pytest

from leasehold.pipeline.contract.feed import body
from leasehold.pipeline.errors import Fenced, NotTrusted, SinkError
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.sink import Claim, CloseReason, Output, Permit, Sink, SinkWriter
from leasehold.pipeline.staging import NotStaged

STATE_BYTES_MAX = 4096


def event_table(partition: str, numbers: Sequence[int]) -> pa.Table:
    """Events of EVENT_SCHEMA whose sequences and bodies are `numbers`."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        {"partition": partition, "sequence": n, "offset": str(n), "enqueued_time": now, "key": "k", "body": body(n)}
        for n in numbers
    ]
    return pa.Table.from_pylist(rows, schema=EVENT_SCHEMA)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a destination. start, to: the range of the batch that it came with, both None if unknown."""

    number: int
    start: str | None = None
    to: str | None = None


class SinkHarness(ABC):
    """A destination, and as many processes that write to it as a test wants.

    partitions: two names; nothing has been written for them yet.
    """

    partitions: tuple[str, str]

    @abstractmethod
    async def sink(self) -> Sink:
        """A new process's sink over the same destination, prepared. The fixture closes it at the end."""

    @abstractmethod
    async def rows(self, partition: str) -> list[Row]:
        """What the destination holds of this partition now, in its order. Seen by a third party, not by a sink under test."""

    def table(self, partition: str, numbers: Sequence[int]) -> pa.Table:
        """Output that the destination takes, one row per number. Override it if the destination wants other columns."""
        return event_table(partition, numbers)


class _Lease:
    """What a lease does for its sink: every claim goes through `claimed`, with a new epoch."""

    def __init__(self, partition: str, pipeline: str = "suite") -> None:
        self.pipeline = pipeline
        self.partition = partition
        self.epoch = 0
        self.generation = 0
        self.continuation: str | None = None
        self.state = ""

    def claim(self, sink: Sink, above: int = 0) -> Claim:
        self.epoch = max(self.epoch, above) + 1
        self.state = sink.claimed(self.state)
        assert len(self.state.encode()) <= STATE_BYTES_MAX
        return Claim(
            pipeline=self.pipeline,
            partition=self.partition,
            owner=f"owner-{self.epoch}",
            epoch=self.epoch,
            generation=self.generation,
            continuation=self.continuation,
            state=self.state,
            compare=lambda a, b: int(a or 0) - int(b or 0),  # as text, "10" would come before "9"
        )

    def checkpoint(self, writer: SinkWriter) -> None:
        self.continuation, self.state = writer.position, writer.state
        assert len(self.state.encode()) <= STATE_BYTES_MAX


class _Permit:
    def __init__(self, *, open: bool = True) -> None:
        self.open = open
        self.checks = 0

    def check(self) -> None:
        self.checks += 1
        if not self.open:
            raise NotTrusted("the suite closed the trust window")

    async def wait_until_granted(self) -> None:
        await asyncio.sleep(0)
        if not self.open:
            raise NotTrusted("the suite closed the trust window")


def _output(harness: SinkHarness, partition: str, start: int, to: int, *, empty: bool = False) -> Output:
    """The events after `start` up to `to`; positions are their numbers, and 0 is the beginning."""
    numbers = [] if empty else range(start + 1, to + 1)
    table = harness.table(partition, numbers) if numbers else harness.table(partition, [1]).slice(0, 0)
    return Output(table=table, start=str(start) if start else None, to=str(to), events=to - start)


async def _numbers_in(harness: SinkHarness, partition: str) -> list[int]:
    return [row.number for row in await harness.rows(partition)]


async def _write(writer: SinkWriter, output: Output, permit: Permit) -> None:
    """Write and flush: a buffering writer may return from `write` before it has delivered the output."""
    await writer.write(output, permit)
    await writer.flush()


@pytest.mark.asyncio
class SinkContract:
    """Give a fixture `harness` that yields a SinkHarness, and closes its sinks.

    Tests of what only a sink that holds its position can promise are skipped for the others.
    """

    @pytest.fixture
    def harness(self) -> Any:
        raise NotImplementedError("define a fixture `harness` that yields a SinkHarness")

    async def test_output_arrives_in_order_and_moves_the_position(self, harness: SinkHarness) -> None:
        lease, sink, permit = _Lease(harness.partitions[0]), await harness.sink(), _Permit()
        writer = await sink.open(lease.claim(sink))
        assert writer.position is None
        ranges = [(0, 3), (3, 9), (9, 10), (10, 12)]
        for start, to in ranges:
            await _write(writer, _output(harness, lease.partition, start, to), permit)
            assert writer.position == str(to)
        rows = await harness.rows(lease.partition)
        assert [row.number for row in rows] == list(range(1, 13))
        for row in rows:
            start, to = next(r for r in ranges if r[0] < row.number <= r[1])
            assert row.to is None or (row.start, row.to) == (str(start) if start else None, str(to))

    async def test_a_first_claim_begins_where_the_lease_stands(self, harness: SinkHarness) -> None:
        lease, sink = _Lease(harness.partitions[0]), await harness.sink()
        lease.continuation = "5"
        writer = await sink.open(lease.claim(sink))
        assert writer.position == "5"
        await _write(writer, _output(harness, lease.partition, 5, 7), _Permit())
        assert await _numbers_in(harness, lease.partition) == [6, 7]

    async def test_an_empty_output_moves_the_position(self, harness: SinkHarness) -> None:
        lease, sink, permit = _Lease(harness.partitions[0]), await harness.sink(), _Permit()
        writer = await sink.open(lease.claim(sink))
        for start, to, empty in ((0, 2, True), (2, 4, False), (4, 9, True)):
            await _write(writer, _output(harness, lease.partition, start, to, empty=empty), permit)
            assert writer.position == str(to)
        lease.checkpoint(writer)
        await writer.close("shutdown")
        writer = await sink.open(lease.claim(sink))
        assert writer.position == "9"
        await _write(writer, _output(harness, lease.partition, 9, 11), permit)
        assert await _numbers_in(harness, lease.partition) == [3, 4, 10, 11]

    async def test_without_trust_nothing_is_sent_and_the_same_write_succeeds_later(self, harness: SinkHarness) -> None:
        lease, sink, permit = _Lease(harness.partitions[0]), await harness.sink(), _Permit()
        writer = await sink.open(lease.claim(sink))
        await _write(writer, _output(harness, lease.partition, 0, 2), permit)
        output = _output(harness, lease.partition, 2, 4)
        permit.open, permit.checks = False, 0
        with pytest.raises(NotTrusted):
            await _write(writer, output, permit)
        assert permit.checks > 0
        assert (await _numbers_in(harness, lease.partition), writer.position) == ([1, 2], "2")
        permit.open = True
        await _write(writer, output, permit)
        assert (await _numbers_in(harness, lease.partition), writer.position) == ([1, 2, 3, 4], "4")

    @pytest.mark.parametrize("reason", get_args(CloseReason))
    async def test_after_a_close_the_next_owner_goes_on(self, harness: SinkHarness, reason: CloseReason) -> None:
        lease, sink, permit = _Lease(harness.partitions[0]), await harness.sink(), _Permit()
        for start in (0, 2, 4):
            writer = await sink.open(lease.claim(sink))
            await _write(writer, _output(harness, lease.partition, start, start + 2), permit)
            lease.checkpoint(writer)
            await writer.close(reason)
        assert await _numbers_in(harness, lease.partition) == [1, 2, 3, 4, 5, 6]

    async def test_the_position_covers_only_what_is_there(self, harness: SinkHarness) -> None:
        """It may lag behind the writes of a buffering writer, but is never ahead of what is delivered."""
        lease, sink, permit = _Lease(harness.partitions[0]), await harness.sink(), _Permit()
        writer = await sink.open(lease.claim(sink))
        for start in range(0, 40, 4):
            await writer.write(_output(harness, lease.partition, start, start + 4), permit)
            safe = int(writer.position or 0)
            assert safe in range(0, start + 5, 4)
            assert set(await _numbers_in(harness, lease.partition)) >= set(range(1, safe + 1))
        await writer.flush()
        assert writer.position == "40"

    async def test_after_a_crash_nothing_is_missing_and_only_what_was_not_checkpointed_comes_again(
        self, harness: SinkHarness
    ) -> None:
        """I9 of docs/protocol.md; a sink that holds its position repeats nothing at all."""
        lease, sink, permit = _Lease(harness.partitions[0]), await harness.sink(), _Permit()
        writer = await sink.open(lease.claim(sink))
        await _write(writer, _output(harness, lease.partition, 0, 4), permit)
        for start in range(4, 20, 4):
            await writer.write(_output(harness, lease.partition, start, start + 4), permit)
            if start == 8:
                lease.checkpoint(writer)
        await writer.close("lost")
        safe = int(lease.continuation or 0)
        again = await harness.sink()
        writer = await again.open(lease.claim(again))
        assert int(writer.position or 0) >= safe
        await _write(writer, _output(harness, lease.partition, int(writer.position or 0), 24), permit)
        times = Counter(await _numbers_in(harness, lease.partition))
        assert sorted(times) == list(range(1, 25))
        assert {number for number, count in times.items() if count > 1} <= set(range(safe + 1, 21))
        assert not sink.holds_position or set(times.values()) == {1}

    async def test_partitions_are_independent(self, harness: SinkHarness) -> None:
        sink, permit = await harness.sink(), _Permit()
        leases = [_Lease(partition) for partition in harness.partitions]
        writers = [await sink.open(lease.claim(sink)) for lease in leases]
        for start in (0, 3):
            for lease, writer in zip(leases, writers, strict=True):
                await _write(writer, _output(harness, lease.partition, start, start + 3), permit)
        await sink.open(leases[0].claim(sink))
        await _write(writers[1], _output(harness, leases[1].partition, 6, 7), permit)
        assert await _numbers_in(harness, leases[0].partition) == [1, 2, 3, 4, 5, 6]
        assert await _numbers_in(harness, leases[1].partition) == [1, 2, 3, 4, 5, 6, 7]

    async def test_the_state_of_a_claim_is_pure_and_small(self, harness: SinkHarness) -> None:
        lease, sink, permit = _Lease(harness.partitions[0]), await harness.sink(), _Permit()
        for start in range(5):
            assert sink.claimed(lease.state) == sink.claimed(lease.state)
            writer = await sink.open(lease.claim(sink))
            await _write(writer, _output(harness, lease.partition, start, start + 1), permit)
            lease.checkpoint(writer)

    async def test_an_open_may_be_tried_again(self, harness: SinkHarness) -> None:
        """It succeeds, or raises how to outrank the first open, which may be that of another tenure with the same claim."""
        lease, sink = _Lease(harness.partitions[0]), await harness.sink()
        claim = lease.claim(sink)
        await sink.open(claim)
        try:
            writer = await sink.open(claim)
        except Fenced as fenced:
            lease.state = lease.state if fenced.state is None else fenced.state
            writer = await sink.open(lease.claim(sink, above=fenced.epoch))
        await _write(writer, _output(harness, lease.partition, 0, 1), _Permit())
        assert await _numbers_in(harness, lease.partition) == [1]

    async def test_the_position_survives_without_a_checkpoint(self, harness: SinkHarness) -> None:
        lease, sink = _Lease(harness.partitions[0]), await _require_exact_sink(harness)
        writer = await sink.open(lease.claim(sink))
        await _write(writer, _output(harness, lease.partition, 0, 9), _Permit())
        await _write(writer, _output(harness, lease.partition, 9, 10), _Permit())
        again = await harness.sink()
        assert (await again.open(lease.claim(again))).position == "10"

    async def test_a_later_owner_fences_the_earlier_one(self, harness: SinkHarness) -> None:
        lease, ours, theirs, permit = (
            _Lease(harness.partitions[0]),
            await _require_exact_sink(harness),
            await harness.sink(),
            _Permit(),
        )
        older = await ours.open(lease.claim(ours))
        await _write(older, _output(harness, lease.partition, 0, 2), permit)
        newer = await theirs.open(lease.claim(theirs))
        with pytest.raises(Fenced):
            await _write(older, _output(harness, lease.partition, 2, 4), permit)
        assert (older.position, newer.position) == ("2", "2")
        assert await _numbers_in(harness, lease.partition) == [1, 2]
        await _write(newer, _output(harness, lease.partition, 2, 3), permit)
        with pytest.raises(Fenced):
            await older.end(permit)
        await _write(newer, _output(harness, lease.partition, 3, 4), permit)
        assert await _numbers_in(harness, lease.partition) == [1, 2, 3, 4]

    async def test_an_older_epoch_is_refused_and_told_how_to_outrank(self, harness: SinkHarness) -> None:
        lease, sink, permit = _Lease(harness.partitions[0]), await _require_exact_sink(harness), _Permit()
        await sink.open(lease.claim(sink))
        await sink.open(lease.claim(sink))
        writer = await sink.open(lease.claim(sink))
        await _write(writer, _output(harness, lease.partition, 0, 6), permit)
        recreated = _Lease(lease.partition)  # the lease document was deleted; it starts over at epoch 1
        with pytest.raises(Fenced) as fenced:
            await sink.open(recreated.claim(sink))
        await _write(writer, _output(harness, lease.partition, 6, 8), permit)
        recreated.state = recreated.state if fenced.value.state is None else fenced.value.state
        writer = await sink.open(recreated.claim(sink, above=fenced.value.epoch))
        assert writer.position == "8"
        await _write(writer, _output(harness, lease.partition, 8, 9), permit)
        assert await _numbers_in(harness, lease.partition) == list(range(1, 10))

    async def test_a_new_generation_starts_from_the_lease(self, harness: SinkHarness) -> None:
        lease, sink, permit = _Lease(harness.partitions[0]), await _require_exact_sink(harness), _Permit()
        older = await sink.open(lease.claim(sink))
        await _write(older, _output(harness, lease.partition, 0, 12), permit)
        lease.generation, lease.continuation = 1, "9"
        newer = await sink.open(lease.claim(sink))
        assert newer.position == "9"
        with pytest.raises(Fenced):
            await _write(older, _output(harness, lease.partition, 12, 13), permit)
        await _write(newer, _output(harness, lease.partition, 9, 11), permit)
        assert (await sink.open(lease.claim(sink))).position == "11"
        assert await _numbers_in(harness, lease.partition) == [*range(1, 13), 10, 11]

    async def test_pipelines_are_independent(self, harness: SinkHarness) -> None:
        sink, permit = await _require_exact_sink(harness), _Permit()
        ours, theirs = _Lease(harness.partitions[0]), _Lease(harness.partitions[0], pipeline="another")
        writer = await sink.open(ours.claim(sink))
        await _write(writer, _output(harness, ours.partition, 0, 2), permit)
        assert (await sink.open(theirs.claim(sink))).position is None
        await _write(writer, _output(harness, ours.partition, 2, 3), permit)

    async def test_who_moves_leases_is_told_the_newest_position_and_claims_nothing(self, harness: SinkHarness) -> None:
        lease, sink, permit = _Lease(harness.partitions[0]), await _require_exact_sink(harness), _Permit()
        onlooker = await harness.sink()
        if not onlooker.reports_standing:
            pytest.skip("this sink does not report its position")
        assert await onlooker.standing(lease.pipeline, lease.partition) is None
        for generation, to in ((0, 2), (3, 4)):
            lease.generation = generation
            lease.continuation = None
            writer = await sink.open(lease.claim(sink))
            await _write(writer, _output(harness, lease.partition, 0, to), permit)
            assert await onlooker.standing(lease.pipeline, lease.partition) == (generation, str(to))
            # the look fenced no owner
            await _write(writer, _output(harness, lease.partition, to, to + 1), permit)
        assert await onlooker.standing("another", lease.partition) is None
        assert await onlooker.standing(lease.pipeline, harness.partitions[1]) is None

    async def test_a_cancelled_write_is_there_with_its_position_or_not_at_all(self, harness: SinkHarness) -> None:
        lease, sink, permit = _Lease(harness.partitions[0]), await _require_exact_sink(harness), _Permit()
        position = 0
        for turns in (*range(12), 40, 200):
            writer = await sink.open(lease.claim(sink))
            assert writer.position == (str(position) if position else None)
            write = asyncio.create_task(writer.write(_output(harness, lease.partition, position, position + 2), permit))
            for _ in range(turns):
                await asyncio.sleep(0)
            write.cancel()
            await asyncio.wait({write})
            if not write.cancelled():
                write.result()
            position = int((await sink.open(lease.claim(sink))).position or 0)
            assert await _numbers_in(harness, lease.partition) == list(range(1, position + 1))

    async def test_an_ended_partition_refuses_writes_and_may_be_ended_again(self, harness: SinkHarness) -> None:
        lease, sink, permit = _Lease(harness.partitions[0]), await _require_exact_sink(harness), _Permit()
        writer = await sink.open(lease.claim(sink))
        await _write(writer, _output(harness, lease.partition, 0, 2), permit)
        await writer.end(permit)
        with pytest.raises((SinkError, Fenced)):
            await _write(writer, _output(harness, lease.partition, 2, 3), permit)
        heir = await sink.open(lease.claim(sink))  # the owner died between the end in the sink and that of the lease
        assert heir.position == "2"
        await heir.end(permit)
        with pytest.raises((SinkError, Fenced)):
            await _write(heir, _output(harness, lease.partition, 2, 3), permit)
        assert await _numbers_in(harness, lease.partition) == [1, 2]

    async def test_staged_parts_count_together_with_the_position_and_not_before(self, harness: SinkHarness) -> None:
        lease, sink, permit = _Lease(harness.partitions[0]), await _require_exact_sink(harness), _Permit()
        writer = await sink.open(lease.claim(sink))
        await _write(writer, _output(harness, lease.partition, 0, 2), permit)
        output = await _stage_output(harness, writer, lease.partition, 2, 9)
        assert (await _numbers_in(harness, lease.partition), writer.position) == ([1, 2], "2")
        permit.open = False
        with pytest.raises(NotTrusted):
            await _write(writer, output, permit)
        assert (await _numbers_in(harness, lease.partition), writer.position) == ([1, 2], "2")
        permit.open = True
        await _write(writer, output, permit)
        assert (await _numbers_in(harness, lease.partition), writer.position) == (list(range(1, 10)), "9")
        await _write(writer, _output(harness, lease.partition, 9, 10), permit)
        output = await _stage_output(harness, writer, lease.partition, 10, 13)
        await _write(writer, output, permit)
        assert await _numbers_in(harness, lease.partition) == list(range(1, 14))
        again = await harness.sink()
        assert (await again.open(lease.claim(again))).position == "13"

    async def test_a_staged_part_that_the_output_does_not_name_never_counts(self, harness: SinkHarness) -> None:
        """A task ran twice, or its owner was gone when it ended."""
        lease, sink, permit = _Lease(harness.partitions[0]), await _require_exact_sink(harness), _Permit()
        writer = await sink.open(lease.claim(sink))
        await _stage_output(harness, writer, lease.partition, 0, 5)
        output = await _stage_output(harness, writer, lease.partition, 0, 6)
        await _write(writer, output, permit)
        await _write(writer, _output(harness, lease.partition, 6, 7), permit)
        assert await _numbers_in(harness, lease.partition) == list(range(1, 8))
        heir = await sink.open(lease.claim(sink))
        await _write(heir, _output(harness, lease.partition, 7, 8), permit)
        assert await _numbers_in(harness, lease.partition) == list(range(1, 9))

    async def test_what_another_epoch_or_another_batch_has_staged_is_refused(self, harness: SinkHarness) -> None:
        lease, sink, permit = _Lease(harness.partitions[0]), await _require_exact_sink(harness), _Permit()
        earlier = await _stage_output(harness, await sink.open(lease.claim(sink)), lease.partition, 0, 4)
        writer = await sink.open(lease.claim(sink))
        of_this_epoch = await _stage_output(harness, writer, lease.partition, 0, 4)
        for output in (earlier, replace(of_this_epoch, staged=(*of_this_epoch.staged, earlier.staged[0]))):
            with pytest.raises(NotStaged):
                await _write(writer, output, permit)
        await _write(writer, of_this_epoch, permit)
        with pytest.raises(NotStaged):
            await _write(writer, replace(of_this_epoch, start="4", to="8"), permit)
        assert (await _numbers_in(harness, lease.partition), writer.position) == ([1, 2, 3, 4], "4")
        await _write(writer, _output(harness, lease.partition, 4, 5), permit)
        assert await _numbers_in(harness, lease.partition) == [1, 2, 3, 4, 5]

    async def test_what_an_owner_staged_before_a_later_claim_counts_for_nothing(self, harness: SinkHarness) -> None:
        lease, sink, permit = _Lease(harness.partitions[0]), await _require_exact_sink(harness), _Permit()
        theirs = await harness.sink()
        older = await sink.open(lease.claim(sink))
        output = await _stage_output(harness, older, lease.partition, 0, 4)
        newer = await theirs.open(lease.claim(theirs))
        with pytest.raises(Fenced):
            await _write(older, output, permit)
        assert (await _numbers_in(harness, lease.partition), newer.position) == ([], None)
        await _write(newer, await _stage_output(harness, newer, lease.partition, 0, 3), permit)
        with pytest.raises(Fenced):
            await _write(older, output, permit)
        assert await _numbers_in(harness, lease.partition) == [1, 2, 3]


async def _stage_output(harness: SinkHarness, writer: SinkWriter, partition: str, start: int, to: int) -> Output:
    """The events after `start` up to `to`, staged as two parts by other processes."""
    empty = _output(harness, partition, start, to, empty=True)
    stager = await writer.make_stager(empty.start, empty.table.schema)
    if stager is None:
        pytest.skip("all output of this sink comes through the host")
    in_executor = pickle.loads(pickle.dumps(stager))  # noqa: S301  # its own
    middle = (start + to) // 2
    parts = [
        await asyncio.to_thread(in_executor.stage, harness.table(partition, range(first, last)), uuid4().hex)
        for first, last in ((start + 1, middle + 1), (middle + 1, to + 1))
    ]
    return replace(empty, staged=tuple(parts))


async def _require_exact_sink(harness: SinkHarness) -> Sink:
    sink = await harness.sink()
    if not sink.holds_position:
        pytest.skip("this sink does not hold its position")
    return sink
