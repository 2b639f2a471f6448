"""The asynchronous sink: the contract, positions, order, keys, back-pressure and trust."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from lab.simulation.loop import run_virtual
from unit.pipeline.destinations import Scripted, Taken, Trouble, Trust, Trusted, claim, now

from leasehold.pipeline.async_sink import AsyncSink, Entry, Failed, Limits, json_row
from leasehold.pipeline.async_sink.request_entry import Converted, Destination
from leasehold.pipeline.async_sink.writer import AsyncWriter
from leasehold.pipeline.contract import Row, SinkContract, SinkHarness, event_table
from leasehold.pipeline.errors import Ambiguous, NotTrusted, SinkUnavailable
from leasehold.pipeline.sink import Output

SMALL = Limits(batch_entries_max=2, in_flight_max=3, buffered_entries_max=7, buffer_age_max_s=0.01)


class ScriptedHarness(SinkHarness):
    """limits small enough that requests overlap; half of the items fail at first."""

    def __init__(self, destination: Scripted) -> None:
        self.partitions = ("a", "b")
        self.destination = destination
        self.sinks: list[AsyncSink] = []

    async def sink(self) -> AsyncSink:
        convert = json_row(order_by="key")
        self.sinks.append(AsyncSink(self.destination, identity="scripted", limits=SMALL, convert=convert))
        await self.sinks[-1].prepare()
        return self.sinks[-1]

    async def rows(self, partition: str) -> list[Row]:
        return [Row(taken.row["sequence"]) for taken in self.destination.taken if taken.row["partition"] == partition]


class TestAsyncSink(SinkContract):
    @pytest.fixture(params=[(), (Trouble("items", share=0.3),)], ids=["well", "items fail"])
    async def harness(self, request: pytest.FixtureRequest) -> Any:
        harness = ScriptedHarness(Scripted(takes_s=0.0, troubles=request.param))
        yield harness
        for sink in harness.sinks:
            await sink.close()


async def opened(destination: Any, continuation: str | None = None, **given: Any) -> AsyncWriter:
    writer = await AsyncSink(destination, identity="scripted", **given).open(claim(continuation))
    assert writer.is_buffering
    return writer


def output(start: int, to: int, *, table: pa.Table | None = None) -> Output:
    made = event_table("7", range(start + 1, to + 1)) if table is None else table
    return Output(table=made, start=str(start) if start else None, to=str(to), events=to - start)


def keyed(start: int, keys: str) -> Output:
    """Events behind `start`, one for each letter, which is its key."""
    table = event_table("7", range(start + 1, start + 1 + len(keys)))
    column = table.schema.get_field_index("key")
    return output(start, start + len(keys), table=table.set_column(column, table.schema.field(column), pa.array(keys)))


@pytest.mark.virtual
async def test_a_write_returns_before_the_destination_answers_and_the_position_follows() -> None:
    writer = await opened(Scripted(takes_s=1.0), "0")
    await writer.write(output(0, 50), Trusted())
    await writer.write(output(50, 100), Trusted())
    assert (writer.position, now()) == ("0", 0.0)
    await writer.wait_for_progress()
    assert (writer.position, writer.acknowledged, now()) == ("100", 100, 1.0)
    await writer.close("shutdown")


@pytest.mark.virtual
async def test_a_request_that_an_answer_makes_due_goes_out_before_more_is_taken() -> None:
    """A destination that waits while rows are converted is a slower one: with 8 requests in flight, by a third."""
    done: list[str] = []
    encoded = json_row()

    def converted(row: Mapping[str, Any], key: str) -> Converted | None:
        done.append("taken")
        return encoded(row, key)

    class Destination(Scripted):
        async def submit(self, entries: Sequence[Entry]) -> Any:
            done.append("sent")
            answer = await super().submit(entries)
            done.append("answered")
            return answer

    limits = Limits(batch_entries_max=1, in_flight_max=2, buffered_entries_max=4, buffer_age_max_s=0.0)
    writer = await opened(Destination(takes_s=1.0), limits=limits, convert=converted)
    await writer.write(output(0, 20), Trusted())
    await writer.close("shutdown")
    behind_answers = [after for before, after in pairwise(done) if before == "answered" and after != "answered"]
    assert len(behind_answers) >= 8
    assert set(behind_answers) == {"sent"}


@pytest.mark.virtual
async def test_a_checkpoint_never_passes_an_entry_that_is_not_acknowledged() -> None:
    class FirstIsSlow(Scripted):
        async def submit(self, entries: Sequence[Entry]) -> Any:
            if entries[0].number == 0:
                await asyncio.sleep(5)
            return await super().submit(entries)

    limits = Limits(batch_entries_max=10, in_flight_max=4)
    destination = FirstIsSlow()
    writer = await opened(destination, limits=limits)
    for start in range(0, 40, 10):
        await writer.write(output(start, start + 10), Trusted())
    await asyncio.sleep(2)
    assert (len(destination.taken), writer.position) == (30, None)
    await writer.flush()
    assert writer.position == "40"
    await writer.close("shutdown")


@pytest.mark.virtual
async def test_rows_of_one_order_key_arrive_in_their_order_whatever_fails() -> None:
    destination = Scripted(troubles=[Trouble("items", share=0.4), Trouble("throttle", share=0.2)])
    limits = Limits(batch_entries_max=5, in_flight_max=6, buffer_age_max_s=0.0)
    writer = await opened(destination, limits=limits, convert=json_row(order_by="key"))
    for start in range(0, 300, 30):
        await writer.write(keyed(start, "abcabdaabbccddeeffgghhiijjkkll"), Trusted())
    await writer.flush()
    await writer.close("shutdown")
    assert sorted(destination.numbers) == list(range(1, 301))
    assert destination.numbers != sorted(destination.numbers)  # different keys did overtake each other
    for key in "abcdefghijkl":
        of_key = [taken.row["sequence"] for taken in destination.taken if taken.row["key"] == key]
        assert of_key == sorted(of_key)


class Late(Scripted):
    """Some requests have no answer in time, and are carried out all the same, until twice the timeout has passed."""

    def __init__(self, timeout_s: float, **given: Any) -> None:
        super().__init__(**given)
        self.timeout_s = timeout_s

    async def _answer(self, entries: Sequence[Entry]) -> Failed:
        if self.rng.random() < 0.2:
            late_s = self.timeout_s * self.rng.uniform(0.0, 1.99)
            asyncio.get_running_loop().call_later(late_s, self._carry_out, list(entries))
            await asyncio.get_running_loop().create_future()
        return await super()._answer(entries)

    def _carry_out(self, entries: Sequence[Entry]) -> None:
        self.taken.extend(Taken(now(), entry) for entry in entries)

    def newest(self) -> Mapping[str, int]:
        """The documents of a destination that replaces by key."""
        return {taken.row["key"]: taken.row["sequence"] for taken in self.taken}


@pytest.mark.virtual
@pytest.mark.parametrize("takes_whole", [False, True])
@pytest.mark.parametrize("seed", range(5))
async def test_a_request_that_is_carried_out_late_replaces_nothing_that_was_sent_after_it(
    seed: int, takes_whole: bool
) -> None:
    destination = Late(4.0, rng=random.Random(seed))
    limits = Limits(batch_entries_max=3, in_flight_max=6, buffer_age_max_s=0.0, request_timeout_s=4.0)
    convert = json_row(order_by="key")
    writer = await opened(destination, limits=limits, convert=convert, takes_whole=takes_whole)
    for start in range(0, 100, 10):
        await writer.write(keyed(start, "abcabdaabb"), Trusted())
    await writer.flush()
    acknowledged = {"c": 93, "d": 96, "a": 98, "b": 100}
    assert destination.newest() == acknowledged
    await asyncio.sleep(10)
    assert destination.newest() == acknowledged
    await writer.close("shutdown")


@pytest.mark.parametrize(
    ("error", "may_land"),
    [
        (Ambiguous("a gateway gave up"), True),
        (ConnectionResetError(104, "reset"), True),
        (ConnectionRefusedError(111, "refused"), False),
        (SinkUnavailable("not now"), False),
    ],
)
def test_a_successor_waits_after_failures_whose_request_may_still_be_carried_out(
    error: Exception, may_land: bool
) -> None:
    class Once(Scripted):
        async def _answer(self, entries: Sequence[Entry]) -> Failed:
            if len(self.began) == 1:
                raise error
            return await super()._answer(entries)

    async def run() -> None:
        destination = Once()
        writer = await opened(destination, limits=Limits(request_timeout_s=4.0), convert=json_row(order_by="key"))
        await writer.write(keyed(0, "aa"), Trusted())
        await writer.flush()
        first, retry, successor = destination.began
        assert destination.numbers == [1, 2]
        assert retry - first < 1.0
        assert (successor - first >= 4.0) is may_land
        await writer.close("shutdown")


class Forgetful(Destination):
    """Takes each request as a whole, and then every third time its answer is lost, or comes too late."""

    def __init__(self) -> None:
        self.requests: list[list[Any]] = []
        self.at_once: set[str] = set()

    async def submit(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        keys = {str(entry.order) for entry in entries}
        assert not keys & self.at_once, "one key in two requests at a time"
        self.at_once |= keys
        try:
            self.requests.append([json.loads(entry.value) for entry in entries])
            count = len(self.requests)
            await asyncio.sleep(0.02)
            if count % 6 == 0:
                await asyncio.sleep(10)
            if count % 3 == 0:
                raise ConnectionResetError(104, "Connection reset by peer")
            return []
        finally:
            self.at_once -= keys


@pytest.mark.virtual
async def test_rows_of_one_order_key_share_requests_and_repeat_from_the_first_that_is_in_doubt() -> None:
    """Of each key, what arrives is its rows in their order; a repetition goes back to a row that was not acknowledged, and
    brings all that followed it. So the last that arrives is the newest."""
    destination = Forgetful()
    limits = Limits(batch_entries_max=20, in_flight_max=3, buffer_age_max_s=0.01, request_timeout_s=1.0)
    writer = await opened(destination, limits=limits, convert=json_row(order_by="key"), takes_whole=True)
    for start in range(0, 600, 60):
        await writer.write(keyed(start, "aaab" * 15), Trusted())
    await writer.flush()
    await writer.close("shutdown")
    rows = [row for request in destination.requests for row in request]
    assert {row["sequence"] for row in rows} == set(range(1, 601))
    assert len(rows) > 600
    assert len(destination.requests) < 150  # with one row of a key each they are 900
    for key in "ab":
        arrived = [row["sequence"] for row in rows if row["key"] == key]
        wanted = sorted(set(arrived))
        following = dict(pairwise(wanted))
        assert all(after <= following[before] for before, after in pairwise(arrived) if before in following)
        assert arrived[-1] == wanted[-1]


@pytest.mark.virtual
async def test_a_rewritten_entry_is_what_is_sent_again() -> None:
    class Shortening(Destination):
        def __init__(self) -> None:
            self.seen: list[list[bytes]] = []

        async def submit(self, entries: Sequence[Entry]) -> Sequence[Entry]:
            self.seen.append([entry.value for entry in entries])
            return [replace(entry, value=b"short", bytes=5) for entry in entries if entry.value != b"short"][:1]

    destination = Shortening()
    writer = await opened(destination)
    await writer.write(output(0, 2), Trusted())
    await writer.flush()
    assert [len(values) for values in destination.seen] == [2, 1]
    assert destination.seen[1] == [b"short"]
    assert writer.position == "2"
    await writer.close("shutdown")


def test_a_row_has_the_same_key_when_it_comes_again_in_other_batches() -> None:
    async def run() -> list[str]:
        destination = Scripted()
        for cuts in ([0, 3, 8, 10], [0, 7, 10]):
            writer = await opened(destination)
            for start, to in pairwise(cuts):
                await writer.write(output(start, to), Trusted())
            await writer.flush()
            await writer.close("shutdown")
        return destination.keys

    keys = run_virtual(run())
    assert keys[:10] == keys[10:]
    assert keys[:2] == ["bank/7/1/0", "bank/7/2/0"]
    assert len(set(keys)) == 10


def test_rows_without_a_sequence_are_counted_from_where_their_batch_starts() -> None:
    async def run() -> list[str]:
        destination = Scripted()
        writer = await opened(destination)
        await writer.write(output(0, 4, table=pa.table({"account": ["a/b", "c"]})), Trusted())
        await writer.write(output(4, 9, table=pa.table({"sequence": [5, 5, None], "n": [1, 2, 3]})), Trusted())
        await writer.flush()
        await writer.close("shutdown")
        return destination.keys

    assert run_virtual(run()) == ["bank/7//0", "bank/7//1", "bank/7/5/0", "bank/7/5/1", "bank/7/4/0"]


@pytest.mark.virtual
async def test_taking_waits_while_the_destination_is_away() -> None:
    destination = Scripted(troubles=[Trouble("dead", end=30)])
    writer = await opened(destination, limits=SMALL)
    write = asyncio.create_task(writer.write(output(0, 100), Trusted()))
    await asyncio.sleep(29)
    assert not write.done()
    assert writer._desk.unsettled == SMALL.buffered_entries_max
    await write
    await writer.flush()
    assert sorted(destination.numbers) == list(range(1, 101))
    assert now() < 40
    await writer.close("shutdown")


@pytest.mark.virtual
async def test_nothing_is_sent_without_trust_and_what_was_taken_is_once_it_is_back() -> None:
    destination, trust = Scripted(), Trust()
    writer = await opened(destination)
    await writer.write(output(0, 3), trust)
    trust.given.clear()
    with pytest.raises(NotTrusted):
        await writer.write(output(3, 5), trust)
    await asyncio.sleep(60)
    assert destination.sizes == []
    trust.given.set()
    await writer.flush()
    assert (destination.numbers, writer.position) == ([1, 2, 3], "3")
    await writer.close("shutdown")


@pytest.mark.virtual
async def test_trust_that_ends_before_the_task_of_a_request_begins_stops_the_request() -> None:
    destination, trust = Scripted(), Trust()
    writer = await opened(destination)
    await writer.write(output(0, 3), trust)
    checked, loop = trust.check, asyncio.get_running_loop()

    def check() -> None:
        checked()
        loop.call_soon(trust.given.clear)  # before the task, which starts after the check

    trust.check = check  # type: ignore[method-assign]
    await asyncio.sleep(60)
    assert destination.sizes == []
    trust.given.set()
    await writer.flush()
    assert destination.numbers == [1, 2, 3]
    await writer.close("shutdown")


@pytest.mark.virtual
async def test_a_request_without_an_answer_is_sent_again_after_its_time() -> None:
    destination = Scripted(troubles=[Trouble("stall", end=5)])
    writer = await opened(destination, limits=Limits(request_timeout_s=2.0))
    await writer.write(output(0, 3), Trusted())
    await writer.flush()
    assert destination.numbers == [1, 2, 3]
    assert destination.began[0] == pytest.approx(0.0)
    assert destination.began[1] - destination.began[0] == pytest.approx(2.1, abs=0.1)
    await writer.close("shutdown")
