"""What a claim on a hub's partition closes, searches and publishes to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.pipeline.connectors.eventhubs.sink.producer_groups import Tail, group, tail_of, to_close
from leasehold.pipeline.connectors.targets import target_of
from leasehold.pipeline.producer import ProducerPosition, ProducerState
from leasehold.pipeline.sink import Claim

CLAIM = Claim(
    pipeline="bank",
    partition="p",
    owner="host",
    epoch=1,
    generation=2,
    continuation=None,
    state="",
    compare=lambda a, b: 0,
)
STATE = ProducerState(level=5, number=70, tail=40)
OURS = group(CLAIM, STATE)
KEPT = replace(STATE, group=OURS)


def known(level: int, number: int, of: int = OURS) -> ProducerPosition:
    return ProducerPosition(group=of, level=level, number=number)


def test_a_source_partition_goes_to_its_namesake() -> None:
    assert target_of("1", ["0", "1", "2"], None) == "1"
    assert target_of("1", ["0", "1", "2"], "2") == "2"


def test_a_target_that_is_gone_is_none_and_so_is_one_of_no_partitions() -> None:
    assert target_of("1", ["0", "1"], "7") is None
    assert target_of("file", [], None) is None


@given(st.sets(st.text(min_size=1, max_size=8), min_size=50, max_size=60))
def test_sources_are_spread_and_few_move_when_the_hub_grows(sources: set[str]) -> None:
    few, many = [f"t{n}" for n in range(4)], [f"t{n}" for n in range(5)]
    before = {source: target_of(source, few, None) for source in sources}
    after = {source: target_of(source, many, None) for source in sources}
    assert len(set(before.values())) == 4
    assert {after[source] for source in sources if after[source] != before[source]} <= {"t4"}


def test_what_the_last_claim_attached_is_closed_unless_it_is_ours() -> None:
    assert to_close(CLAIM, KEPT) == []
    earlier = group(CLAIM, STATE, generations_back=1)
    assert to_close(CLAIM, replace(STATE, group=earlier)) == [earlier]
    last_series = group(CLAIM, STATE, series=0)
    assert to_close(CLAIM, replace(STATE, series=1, group=last_series)) == [last_series]


def test_a_document_that_knows_no_group_closes_those_of_the_generations_before() -> None:
    assert to_close(CLAIM, STATE) == [group(CLAIM, STATE, generations_back=steps) for steps in (1, 2)]
    assert to_close(replace(CLAIM, generation=0), STATE) == []
    assert len(to_close(replace(CLAIM, generation=99), replace(STATE, series=1))) == 4


def test_what_came_since_the_question_is_searched_if_the_group_stands_as_it_was_left() -> None:
    assert tail_of(CLAIM, KEPT, known(4, 70), before=60) == Tail(behind=60, is_binding=False)
    assert tail_of(CLAIM, KEPT, known(4, 70), before=30) == Tail(behind=40, is_binding=False)  # an old answer


def test_what_was_published_since_the_last_checkpoint_is_searched() -> None:
    for level, number in ((4, 71), (3, 70), (5, 70), (0, 0)):
        assert tail_of(CLAIM, KEPT, known(level, number), before=60) == Tail(behind=40, is_binding=True)


@pytest.mark.parametrize("nothing", [0, -1])
def test_a_lease_that_has_never_published_searches_nothing_and_a_lost_document_all(nothing: int) -> None:
    new = replace(STATE, tail=-1)
    assert tail_of(CLAIM, new, known(0, nothing), before=60) == Tail(behind=60, is_binding=False, is_first=True)
    assert tail_of(CLAIM, new, known(7, 3), before=60) == Tail(behind=-1, is_binding=False)
    assert tail_of(CLAIM, replace(new, series=1), known(0, nothing), before=60).behind == -1


def test_a_new_generation_searches_for_its_own_alone_and_retention_does_not_bind_it() -> None:
    reset = replace(STATE, group=group(CLAIM, STATE, generations_back=1))
    assert tail_of(CLAIM, reset, known(0, 0), before=60) == Tail(behind=60, is_binding=False, is_first=True)
    assert tail_of(CLAIM, reset, known(4, 9), before=60) == Tail(behind=40, is_binding=False)
    assert tail_of(CLAIM, reset, known(4, 9), before=30) == Tail(behind=30, is_binding=False)  # the hub was made again
