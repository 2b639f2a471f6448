"""A slice of `make letters`: hosts killed and frozen with dead letters under way; and what makes the whole of it fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from lab.scenarios.cases import POINTS_OF_SINK
from lab.scenarios.letters import BESIDE, FROZEN, KILLED, MENDED, NEVER, Case, MakeScene, cases, scenes, told, verdict
from lab.scenarios.letters_kinds import KINDS, SERVED

SLICE = (
    Case("postgres in one transaction", "committed"),
    Case("postgres with files", "letters put"),
    Case("log with log", "letters put"),
    Case("files with files", "file put"),
    Case("http with log", "letters put"),
    Case("handlers with log", "event parked"),
    Case("log with log", "letters put", FROZEN),
)


@pytest.fixture(scope="module")
def scene_of() -> Iterator[MakeScene]:
    with scenes() as made:
        yield made


@pytest.mark.parametrize("case", SLICE, ids=lambda case: case.name.strip())
def test_letters_and_output_are_the_feed_though_the_host_dies_or_freezes(scene_of: MakeScene, case: Case) -> None:
    assert verdict(scene_of, case) == "exact"


def test_every_point_is_a_case_of_every_kind_that_has_it() -> None:
    found = {(case.kind, case.point) for case in cases() if case.fault == KILLED}
    for kind, each in KINDS.items():
        own = {point for system in each.systems for point in POINTS_OF_SINK[system]}
        assert {(kind, point) for point in own - NEVER} <= found
    assert {("log with log", "page read"), ("files with files", "letters put")} <= found
    assert ("log with log", "committed") not in found
    assert {("files with hub", point) for point in BESIDE} <= found
    assert cases("no such case") == []


def test_hosts_freeze_amidst_letters_and_amidst_output_of_every_kind() -> None:
    found = {(case.kind, case.point) for case in cases() if case.fault == FROZEN}
    assert {(kind, "before write") for kind in KINDS} <= found
    assert {(kind, "letters put") for kind, each in KINDS.items() if "box" in each.systems} <= found
    assert {("files with hub", "published"), ("http with log", "submitted"), ("log with log", "appended")} <= found
    assert not {point for _, point in found} & {"page read", "checkpointed", "released"}


def test_whoever_needs_a_server_gets_it() -> None:
    assert {kind.server for kind in KINDS.values()} == set(SERVED)


def test_what_is_lost_doubled_or_wrongly_dead_is_told() -> None:
    mended = MENDED.encode().split()[0]
    everything = Counter([b"a", b"b!", mended])
    assert told(everything, Counter([b"a", mended]), Counter([b"b!"])) == "exact"
    assert told(everything, Counter([b"a"]), Counter([b"b!", mended])) == "exact"
    assert told(everything, Counter([b"a"]), Counter([b"b!"])).startswith("lost")
    assert told(everything, Counter([b"a", mended]), Counter([b"b!", mended])).startswith("doubled")
    assert "dead without a reason" in told(everything, Counter([mended]), Counter([b"a", b"b!"]))
    assert "delivered though dead" in told(everything, Counter([b"a", b"b!", mended]), Counter())
