"""The producer's state: numbers that wrap, levels that are used up, and documents that nobody can trust."""

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.producer import LEVEL_MAX, NUMBER_MAX, ProducerState, claimed, decoded, group_of, number_after

STATES = st.builds(
    ProducerState,
    group=st.none() | st.integers(0, 2**63 - 1),
    series=st.integers(0, 2**31 - 2),
    level=st.integers(0, LEVEL_MAX),
    number=st.integers(-1, NUMBER_MAX),
    tail=st.integers(-1, 2**63 - 1),
    target=st.none() | st.text("0123abc./", min_size=1, max_size=100),
)


@given(STATES)
def test_a_state_survives_the_lease_document(state: ProducerState) -> None:
    assert decoded(state.encoded()) == state
    assert len(state.encoded()) < 320


@given(STATES)
def test_every_claim_outranks_the_one_before(state: ProducerState) -> None:
    claim = decoded(claimed(state.encoded()))
    assert (claim.series, claim.level) > (state.series, state.level)
    assert 1 <= claim.level <= LEVEL_MAX
    assert (claim.group, claim.tail, claim.number) == (state.group, state.tail, state.number)


def test_a_new_lease_claims_level_one_and_a_used_up_group_is_followed_by_the_next() -> None:
    assert decoded(claimed("")) == ProducerState(level=1)
    last = ProducerState(series=3, level=LEVEL_MAX - 1).claimed()
    assert last == ProducerState(series=3, level=LEVEL_MAX)
    assert last.claimed() == ProducerState(series=4, level=1)


def test_numbers_wrap_after_the_largest_int32() -> None:
    assert number_after(-1) == 0
    assert number_after(0) == 1
    assert number_after(2**31 - 2) == 2**31 - 1
    assert number_after(2**31 - 1) == 0
    assert number_after(2**31 - 1, 5) == 4


@given(st.integers(0, NUMBER_MAX), st.integers(0, 10**6), st.integers(0, 10**6))
def test_numbers_of_batches_add_up(number: int, first: int, second: int) -> None:
    assert number_after(number_after(number, first), second) == number_after(number, first + second)
    assert 0 <= number_after(number, first) <= NUMBER_MAX


def test_a_group_is_the_same_in_every_version_and_no_other_lease_s() -> None:
    assert group_of("bank", "p", 0, 0) == 4088589497396505792
    leases = [("bank", "p", 0, 0), ("bank", "p", 0, 1), ("bank", "p", 1, 0), ("ban", "kp", 0, 0), ("bank", "p0", 0, 0)]
    groups = [group_of(*lease) for lease in leases]
    assert len(set(groups)) == len(leases)
    assert all(0 <= group < 2**63 for group in groups)


GOOD = asdict(ProducerState(group=5, level=3, number=7, tail=9))


@pytest.mark.parametrize(
    "state",
    [
        "x",
        "null",
        "[]",
        "{}",
        "7",
        "[" * 1000,
        json.dumps({**GOOD, "more": 1}),
        json.dumps({name: value for name, value in GOOD.items() if name != "tail"}),
        *(
            json.dumps({**GOOD, "level": bad})
            for bad in (None, "3", 3.0, True, -1, LEVEL_MAX + 1, 2**63, [], float("nan"))
        ),
        json.dumps({**GOOD, "group": 2**63}),
        json.dumps({**GOOD, "number": 2**31}),
        json.dumps({**GOOD, "number": -2}),
        json.dumps({**GOOD, "tail": -2}),
        json.dumps(GOOD) + " " * 2000,
        json.dumps({**GOOD, "tail": 10**1000}),
        *(json.dumps({**GOOD, "target": bad}) for bad in ("", 1, [], "x" * 101)),
    ],
)
def test_a_state_that_nobody_wrote_is_refused_with_what_to_do(state: str) -> None:
    for reads in (decoded, claimed):
        with pytest.raises(
            SinkRejected, match=r"sink state of the lease .*: set the document's sinkState to an empty text"
        ):
            reads(state)


def test_a_state_is_small_enough_to_stay_what_it_is() -> None:
    largest = ProducerState(group=2**63 - 1, series=2**31 - 1, level=LEVEL_MAX, number=NUMBER_MAX, tail=2**63 - 1)
    assert decoded(replace(largest, group=None).encoded()) == replace(largest, group=None)
    assert decoded(largest.encoded()) == largest
