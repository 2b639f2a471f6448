"""Where a claim of a broker's position continues, and which positions it refuses."""

from __future__ import annotations

import pytest

from leasehold.pipeline.connectors.held import Held, claimed
from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.sink import Claim


def claim(**more: object) -> Claim:
    values = {"epoch": 5, "generation": 1, "continuation": "7", "owner": "host-b", "state": "", **more}
    return Claim(pipeline="bank", partition="0", compare=lambda a, b: int(a or 0) - int(b or 0), **values)  # type: ignore[arg-type]


def held(position: str | None, generation: int = 1) -> Held:
    return Held(generation=generation, epoch=4, owner="host-a", position=position, target=0)


@pytest.mark.parametrize("position", ["7", "9"])
def test_a_claim_continues_where_the_broker_is(position: str) -> None:
    assert claimed(claim(), held(position), 1, "topic 'out'").position == position


@pytest.mark.parametrize(("position", "named"), [("6", "is at 6"), (None, "is at the beginning")])
def test_a_position_that_is_before_the_leases_is_refused_with_all_remedies(position: str | None, named: str) -> None:
    ways = f"--to {position or 'earliest'} --yes`.*--to 7 --yes`.*--to earliest"
    with pytest.raises(SinkRejected, match=rf"'out' {named}, and the lease is at 7 already.*{ways}"):
        claimed(claim(), held(position), 1, "topic 'out'")


@pytest.mark.parametrize("before", [None, held("6", generation=0), held("9", generation=0)])
def test_a_new_generation_begins_where_the_lease_is(before: Held | None) -> None:
    assert claimed(claim(), before, 1, "topic 'out'").position == "7"


def test_a_lease_without_a_position_continues_where_the_broker_is() -> None:
    assert claimed(claim(continuation=None), held(None), 1, "topic 'out'").position is None
    assert claimed(claim(continuation=None), held("3"), 1, "topic 'out'").position == "3"
