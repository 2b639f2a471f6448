"""What becomes of errors in an asynchronous sink: fatal ones, outages, and what it leaves behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pyarrow as pa
import pytest
from lab.simulation.loop import run_virtual
from unit.pipeline.async_sink.test_writer_sink import opened, output
from unit.pipeline.destinations import Scripted, Trouble, Trusted, claim, now

from leasehold.pipeline.async_sink import AsyncSink, Entry, Limits
from leasehold.pipeline.errors import SinkRejected


@pytest.mark.virtual
@pytest.mark.parametrize("error", [SinkRejected("entry 2 is refused"), ZeroDivisionError("a fault")])
async def test_a_fatal_error_is_raised_and_the_position_stays_before_it(error: Exception) -> None:
    def refuse(entries: Sequence[Entry]) -> None:
        if any(entry.number == 4 for entry in entries):
            raise error

    destination = Scripted(before=refuse)
    writer = await opened(destination, limits=Limits(batch_entries_max=2, in_flight_max=2))
    await writer.write(output(0, 2), Trusted())
    await writer.flush()
    await writer.write(output(2, 10), Trusted())
    with pytest.raises(SinkRejected, match=r"entry 2 is refused|ZeroDivisionError: a fault"):
        async with asyncio.timeout(60):
            await writer.flush()
    assert writer.position == "2"
    began = len(destination.began)
    with pytest.raises(SinkRejected):
        await writer.write(output(10, 12), Trusted())
    await asyncio.sleep(60)
    assert len(destination.began) == began
    await writer.close("failed")


@pytest.mark.virtual
async def test_a_cancellation_that_nobody_asked_for_is_a_fault_and_no_wait_for_ever() -> None:
    def cancel(entries: Sequence[Entry]) -> None:
        raise asyncio.CancelledError

    writer = await opened(Scripted(before=cancel))
    await writer.write(output(0, 2), Trusted())
    with pytest.raises(SinkRejected, match="failed unexpectedly"):
        await writer.flush()
    await writer.close("failed")


@pytest.mark.virtual
async def test_a_row_that_cannot_be_converted_is_named() -> None:
    writer = await opened(Scripted())
    with pytest.raises(SinkRejected, match=r"destination 'scripted' cannot take row bank/7/1/0, which .*NaN|not JSON"):
        await writer.write(output(0, 1, table=pa.table({"sequence": [1], "rate": [float("nan")]})), Trusted())
    await writer.close("failed")


@pytest.mark.virtual
async def test_nothing_is_left_behind_by_a_close() -> None:
    destination = Scripted(takes_s=50)
    writer = await opened(destination)
    await writer.write(output(0, 100), Trusted())
    await asyncio.sleep(1)
    assert destination.at_once == 1
    await writer.close("lost")
    assert destination.at_once == 0
    assert len(asyncio.all_tasks()) == 1


def test_partitions_that_met_one_outage_do_not_come_back_together() -> None:
    async def run() -> list[list[float]]:
        destinations = [Scripted() for _ in "78"]
        for partition, destination in zip("78", destinations, strict=True):
            writer = await AsyncSink(destination, identity="scripted").open(claim(partition=partition))
            began = now()
            destination.troubles = [Trouble("dead", end=began + 1)]
            await writer.write(output(0, 2), Trusted())
            await writer.flush()
            await writer.close("shutdown")
            destination.began = [at - began for at in destination.began]
        return [destination.began for destination in destinations]

    first, second = run_virtual(run())
    assert first != pytest.approx(second)
    assert [first, second] == run_virtual(run())  # and a run can be repeated


def test_an_outage_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        writer = await opened(Scripted(troubles=[Trouble("dead", end=20)]))
        await writer.write(output(0, 500), Trusted())
        await writer.flush()
        await writer.close("shutdown")

    with caplog.at_level(logging.WARNING):
        run_virtual(run())
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "destination 'scripted' accepts nothing for partition '7' of pipeline 'bank'" in told[0]
    assert "accepts entries again" in told[1]


def test_a_sink_whose_limits_contradict_each_other_is_not_made() -> None:
    with pytest.raises(ValueError, match="buffered_entries_max"):
        AsyncSink(Scripted(), identity="scripted", limits=Limits(buffered_entries_max=1))
