"""A destination that takes only so much in one step gets a batch in parts, each a step of its own."""

from __future__ import annotations

import pytest
from lab.simulation.group import until
from unit.pipeline.pump.test_runner import Case, Writer, assert_nothing_left

from leasehold.pipeline.connectors.memory import MemoryChangeFeed
from leasehold.pipeline.errors import PoisonEvent
from leasehold.pipeline.limits import BatchLimits
from leasehold.pipeline.sink import Output


class Small(Writer):
    """Takes `most` events at once."""

    most = 3

    def parts(self, output: Output) -> int:
        return -(-output.events // self.most)


def case_of(events: int) -> Case:
    case = Case(events, limits=BatchLimits(events_max=events), feed=MemoryChangeFeed("a"))
    case.writer = Small()
    return case


@pytest.mark.virtual
async def test_a_batch_that_is_too_large_for_the_sink_goes_out_in_parts() -> None:
    case = case_of(10)
    running = case.started()
    await until(lambda: len(case.writer.numbers) == 10)
    outputs = case.writer.outputs
    assert [output.events for output in outputs] == [2, 2, 3, 3]
    assert case.writer.numbers == list(range(10))
    assert [output.start for output in outputs] == [None, *(output.to for output in outputs[:-1])]
    await case.stopped(running)
    assert case.budget.held == 0


@pytest.mark.virtual
async def test_what_precedes_a_poison_event_is_delivered_in_parts_too() -> None:
    case = case_of(10)
    case.transform.poison = {7}
    with pytest.raises(PoisonEvent, match="event 7"):
        await case.started()
    assert case.writer.numbers == list(range(7))
    assert max(output.events for output in case.writer.outputs) <= Small.most
    assert_nothing_left()
