"""What `make outage` finds in the logs of hosts, and which of its bounds are broken."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from lab.scenarios.outage_books import (
    ASKS,
    LEAVES,
    WORKS_AT_LEAST_S,
    WORKS_AT_MOST_S,
    Handoff,
    Line,
    Outage,
    batches_in,
    handoffs_in,
    judge_handoffs,
    judge_outage,
    quantile,
    read_lines,
)

from leasehold.leases.lease import Lease


def line(at: float, host: str, event: str, partition: str = "0", epoch: int = 1) -> Line:
    lease = {} if event == "host draining" else {"partition": partition, "epoch": epoch}
    return {"at": at, "host": host, "event": event, **lease}


OWNED = [line(1, "a", "lease acquired"), line(2, "a", "batch delivered")]


def times(lines: list[Line]) -> list[tuple[str, str, float, float]]:
    return [(each.kind, each.partition, each.acquired_s, each.delivered_s) for each in handoffs_in(lines)]


def test_a_line_that_is_not_whole_is_left_for_later() -> None:
    text = json.dumps({"time": "2026-01-01T00:00:00.250Z", "event": "host started"}) + "\n"
    [found] = read_lines(text + text[:-1])
    assert found["at"] % 60 == 0.25


def test_a_handoff_ends_with_the_first_batch_of_the_new_owner() -> None:
    asked = [line(3, "b", "handoff requested"), line(3.5, "b", "lease acquired", epoch=2)]
    delivered = [line(at, "b", "batch delivered", epoch=2) for at in (4, 5)]
    assert times([*OWNED, *delivered, *asked]) == [(ASKS, "0", 0.5, 1)]


def test_what_the_old_owner_still_delivers_ends_no_handoff() -> None:
    late = [line(at, "a", "batch delivered") for at in (3.2, 3.7)]
    asked = [line(3, "b", "handoff requested"), line(3.5, "b", "lease acquired", epoch=2)]
    assert times([*OWNED, *late, *asked]) == []


def test_a_host_that_leaves_hands_over_what_it_owns_and_nothing_else() -> None:
    others = [line(1, "b", "lease acquired", partition="1"), line(3.5, "c", "lease acquired", partition="1", epoch=2)]
    leaving = [line(3, "a", "host draining"), line(3.25, "b", "lease acquired", epoch=2)]
    batches = [line(4, "b", "batch delivered", epoch=2), line(4, "c", "batch delivered", partition="1", epoch=2)]
    assert times([*OWNED, *others, *leaving, *batches]) == [(LEAVES, "0", 0.25, 1)]


def test_leases_that_no_host_gave_up_are_no_handoffs() -> None:
    assert times([*OWNED, line(3, "b", "lease acquired", epoch=2), line(4, "b", "batch delivered", epoch=2)]) == []


def test_batches_are_counted_by_partition() -> None:
    assert batches_in([*OWNED, line(3, "b", "batch delivered", partition="1")]) == {"0": [2], "1": [3]}


@pytest.mark.parametrize(("share", "value"), [(0.5, 5), (0.95, 10), (0.1, 1), (0, 1), (1, 10)])
def test_a_quantile_is_one_of_the_values(share: float, value: int) -> None:
    assert quantile(range(10, 0, -1), share) == value


def handoffs(kind: str, acquired_s: float, delivered_s: float) -> list[Handoff]:
    return 3 * [Handoff(kind=kind, partition="0", acquired_s=acquired_s, delivered_s=delivered_s)]


@pytest.mark.parametrize(
    ("leaves", "asks", "broken"),
    [
        ((0.1, 0.2), (0.2, 2.0), 0),
        ((0.1, 0.21), (0.2, 2.0), 1),
        ((0.1, 0.2), (0.21, 0.21), 1),
    ],
)
def test_half_of_the_handoffs_keep_the_promise(
    leaves: tuple[float, float], asks: tuple[float, float], broken: int
) -> None:
    rows, found = judge_handoffs([*handoffs(LEAVES, *leaves), *handoffs(ASKS, *asks)], 3)
    assert (len(rows), len(found)) == (5, broken)


def test_too_few_handoffs_show_nothing() -> None:
    assert judge_handoffs(handoffs(LEAVES, 0.1, 0.1), 3)[1] == [
        f"{ASKS}: 0 handoffs were measured, and at least 3 are needed"
    ]


LEASE = Lease(pipeline="copy", partition="0", owner="a", incarnation="1", epoch=4)
GOOD = Outage(
    killed_at=100,
    started_at=130,
    answered_at=131,
    before={"0": LEASE},
    after={"0": replace(LEASE, tick=9)},
    batches={"0": [99, 105, 133, 140]},
    written={"0": 3},
    events_per_s=120.4,
    asked_per_s=120,
    arrived={"0": [1, 2, 3]},
)


def test_an_outage_within_its_bounds_is_shown_with_its_figures() -> None:
    rows, broken = judge_outage(GOOD)
    assert broken == []
    assert (GOOD.worked_s, GOOD.resumed_s, GOOD.lost, GOOD.duplicated) == ([5], {"0": 2}, 0, 0)
    assert rows[1].split() == ["a", "1", "1"]
    assert rows[-1] == "events written 3 (120/s), lost 0, duplicated 0"


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"after": {"0": replace(LEASE, owner="b", incarnation="2", epoch=5)}}, "leases moved: 0"),
        ({"after": {"0": replace(LEASE, epoch=6)}}, "leases moved: 0"),
        ({"after": {}}, "leases moved: 0"),
        ({"batches": {"0": [100 + WORKS_AT_LEAST_S / 2, 133]}}, "a partition stopped before"),
        ({"batches": {"0": [100 + WORKS_AT_MOST_S + 1, 133]}}, "a partition delivered after"),
        ({"batches": {"0": [99, 105]}}, "partitions did not resume: 0"),
        ({"batches": {"0": [105, 150]}}, "a partition resumed later than"),
        ({"events_per_s": 107.0}, "events written in a second: 107, and 120 were asked for"),
        ({"arrived": {"0": [1, 3]}}, "events lost: 1"),
        ({"arrived": {}}, "events lost: 3"),
        ({"arrived": {"0": [1, 2, 2, 3]}}, "events duplicated: 1"),
        ({"arrived": {"0": [1, 3, 2]}}, "events out of order: 0"),
    ],
)
def test_each_broken_bound_is_named(change: dict[str, Any], broken: str) -> None:
    [found] = judge_outage(replace(GOOD, **change))[1]
    assert found.startswith(broken)
