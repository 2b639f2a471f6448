"""A slice of `make scenarios`, without Spark: a crash, a freeze, a move; and what makes the whole of it fail.

Crash points lie in workers and sinks; whether Spark has made the batch is nothing to them. Hosts with Spark that die, freeze and
share are those of test_hosts.py, test_cosmos_bank.py and test_chaos.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab.scenarios.bank import Result
from lab.scenarios.cases import POINTS_OF_SINK, exit_code, points_of_sink, table
from lab.scenarios.faults import IDENTICAL, Banks, Case, case_of, cases, crash, opened, points_of
from lab.scenarios.grounds import FEEDS, ROLES, grounds

from leasehold.pipeline.crash_point import POINTS

SLICE = (
    ("stream-processor-crash", "transform", "appended"),
    ("duplicated-consumer", "generate", "slow, handoff"),
    ("duplicated-consumer", "balances", "committed"),
    ("duplicated-consumer", "balances", "slow, handoff"),
)


@pytest.fixture(scope="module")
def banks() -> Iterator[Banks]:
    with opened(1, grounds("log", with_spark=False)) as banks:
        yield banks


@pytest.mark.parametrize(("scenario", "role", "point"), SLICE)
def test_the_end_is_that_of_an_undisturbed_run(banks: Banks, scenario: str, role: str, point: str) -> None:
    [case] = [case for case in cases() if (case.scenario, case.role, case.point) == (scenario, role, point)]
    assert banks.verdict(case) == "identical"


def test_a_point_that_is_never_reached_fails_the_target(banks: Banks, capsys) -> None:
    never = case_of("event-generator-crash", "generate", "committed", crash)
    assert exit_code([never], table(banks.verdict, [never], at_a_time=1, good=IDENTICAL)) == 1
    assert "the point was not reached: exit code 0" in capsys.readouterr().out


def test_another_end_fails_the_target(banks: Banks, capsys) -> None:
    nothing_done = Case("view-generator-crash", "balances", "nothing", lambda bank: None)
    assert exit_code([nothing_done], table(banks.verdict, [nothing_done], at_a_time=1, good=IDENTICAL)) == 1
    assert "DIFFERS: 0 events in 0 balances" in capsys.readouterr().out


def test_the_target_fails_where_one_end_is_not_identical_and_where_nothing_was_run() -> None:
    every = cases()
    assert exit_code(every, len(every)) == 0
    assert exit_code(every, len(every) - 1) == 1
    assert exit_code([], 0) == 1


@pytest.mark.parametrize("feed", FEEDS)
def test_every_point_is_a_case_of_every_role_that_has_it(feed: str) -> None:
    reached = {(case.scenario, case.role, case.point) for case in cases(feed=feed)}
    for scenario, roles in {
        "event-generator-crash": ("generate",),
        "stream-processor-crash": ("transform",),
        "view-generator-crash": ("balances",),
        "duplicated-consumer": ROLES,
    }.items():
        for role in roles:
            assert {(scenario, role, point) for point in points_of(role, feed)} <= reached


def test_no_point_is_left_out() -> None:
    of_banks = {point for feed in FEEDS for role in ROLES for point in points_of(role, feed)}
    assert of_banks | {point for sink in POINTS_OF_SINK for point in points_of_sink(sink)} == set(POINTS)


def test_over_hubs_every_fault_of_the_wire_is_a_case_too() -> None:
    broken = [(case.role, case.point) for case in cases("broken-wire", "eventhubs")]
    assert {point for _, point in broken} >= {
        "cut before stored",
        "cut after stored",
        "answer lost",
        "throttled",
        "out of order",
        "level stolen",
        "link stolen",
    }
    assert {role for role, _ in broken} == set(ROLES)


@pytest.mark.parametrize("feed", ["kafka", "pulsar"])
def test_over_a_real_broker_every_role_loses_it_too(feed: str) -> None:
    broken = {(case.role, case.point) for case in cases("broken-wire", feed)}
    assert broken == {(role, how) for role in ROLES for how in ("broker killed", "broker frozen")}


def test_an_end_is_told_by_its_counts() -> None:
    assert Result({"log": {"0": [1, 2], "1": [3]}}, {}).told == "0 events in 0 balances, logs {'log': 3}"
