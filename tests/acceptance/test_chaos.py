"""A slice of `make chaos`: every cheap kind of fault once, while transactions keep coming; and what such a run would tell."""

from __future__ import annotations

import asyncio
import csv
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from scenarios.chaos import Outcome, lived
from scenarios.chaos_books import AMOUNTS, Found, Writer, Written, difference, number_of
from scenarios.chaos_group import Happened
from scenarios.chaos_plan import KINDS, planned
from scenarios.place import place

from service.cli.demo.transactions import Transaction, expected_balances, expected_events

DEAR = ("host added", "host told to stop", "host killed", "Spark killed")
"""A start of Spark each."""
CHEAP = tuple(kind for kind in KINDS if kind not in DEAR)
SEED = 6
"""One that leaves somebody able to deliver while the others suffer."""
WRITE_EVERY_S = 1
"""A quarter of the batches of `make chaos`: each costs a tenth of a second, and a fault meets one as it is."""


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def outcome(said: list[str]) -> Iterator[Outcome]:
    with place("chaos", is_kept=True) as (directory, server):
        plan = islice(planned(SEED, (0.2, 1), CHEAP), len(CHEAP))
        result = lived(directory, server, SEED, plan, 600, said.append, write_every_s=WRITE_EVERY_S)
        said.append(f"kept: {directory}")
        yield result
    if not result.failures:
        shutil.rmtree(directory)


@pytest.mark.timeout(600)
def test_nothing_is_lost_or_duplicated_by_faults_that_overlap(outcome: Outcome, said: list[str]) -> None:
    assert not outcome.failures, "\n".join([*said, *outcome.told()])


@pytest.mark.timeout(600)
def test_every_kind_of_fault_happened(outcome: Outcome) -> None:
    assert {each.kind for each in outcome.happened} == set(CHEAP)


# What such a run would tell


@pytest.fixture
async def written(tmp_path: Path) -> Written:
    writer = Writer(tmp_path, SEED)
    writing = asyncio.create_task(writer.write(0, 10))
    while writer.count < 200:  # noqa: ASYNC110 - files tell nobody
        await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait({writing})
    return writer.written


def exact(written: Written) -> Found:
    """What has to come of it, all of it committed in the first second of Unix time."""
    rows = [row for each in written.values() for row in each]
    balances, events = expected_balances(rows), expected_events(rows)
    parts = {name: [number_of(row.amount) for row in each] for name, each in written.items()}
    return Found(
        {log: {name: list(numbers) for name, numbers in parts.items()} for log in AMOUNTS},
        {account: (balances[account], events[account]) for account in balances},
        {name: len(numbers) for name, numbers in parts.items()},
        [(0.5, len(rows))],
    )


def told(written: Written, found: Found, *happened: Happened) -> list[str]:
    return Outcome(len(written), happened, found, difference(written, found)).failures


FAULT = Happened("host killed", 0, 1)
FILE = "transactions-2.csv"


def test_the_files_hold_whole_lines_in_the_order_told(written: Written, tmp_path: Path) -> None:
    for name, rows in written.items():
        with (tmp_path / name).open(newline="") as file:
            assert [Transaction(**row) for row in csv.DictReader(file)] == rows  # type: ignore[arg-type]


def test_an_exact_end_has_no_failures(written: Written) -> None:
    assert exact(written).is_whole(written)
    assert told(written, exact(written), FAULT) == []


def test_a_session_that_lapses_without_a_fault_is_counted(written: Written) -> None:
    happened = [
        Happened("host frozen", 10, 20),
        Happened("PostgreSQL crashed", 40, 50),
        Happened("leases away", 60, 61),
    ]
    whole = exact(written)
    outcome = Outcome(len(written), happened, whole, difference(written, whole), lapses=[9.0, 15.0, 21.0, 45.0, 62.0])
    assert outcome.false_lapses == 2
    assert "sessions that lapsed without a reason: 2" in outcome.failures


@pytest.mark.parametrize("log", AMOUNTS)
def test_a_lost_transaction_is_named(written: Written, log: str) -> None:
    found = exact(written)
    number = found.logs[log][FILE].pop(3)
    assert not found.is_whole(written)
    assert list(difference(written, found).lines()) == [f"lost in {log}, {FILE}: {number}"]
    assert told(written, found, FAULT) == ["1 lost, 0 duplicated"]


@pytest.mark.parametrize("log", AMOUNTS)
def test_a_duplicated_transaction_is_named(written: Written, log: str) -> None:
    found = exact(written)
    number = found.logs[log][FILE][3]
    found.logs[log][FILE].append(number)
    assert list(difference(written, found).lines()) == [f"duplicated in {log}, {FILE}: {number}"]
    assert told(written, found, FAULT) == ["0 lost, 1 duplicated"]


def test_a_transaction_in_another_file_s_partition_is_lost_here_and_duplicated_there(written: Written) -> None:
    found = exact(written)
    found.logs["raw-event"]["transactions-1.csv"].append(found.logs["raw-event"][FILE].pop())
    assert told(written, found, FAULT) == ["1 lost, 1 duplicated"]


def test_transactions_out_of_order_are_told(written: Written) -> None:
    found = exact(written)
    found.logs["raw-event"][FILE].reverse()
    assert told(written, found, FAULT) == ["0 lost, 0 duplicated, 1 wrong"]


@pytest.mark.parametrize(
    ("events", "value", "failure"),
    [(-1, 0, "1 lost, 0 duplicated"), (2, 1, "0 lost, 2 duplicated"), (0, 1, "0 lost, 0 duplicated, 1 wrong")],
)
def test_a_balance_that_is_not_exact_is_told(written: Written, events: int, value: int, failure: str) -> None:
    found = exact(written)
    balance, count = found.rows["account 1"]
    off = replace(found, rows={**found.rows, "account 1": (balance + value, count + events)})
    assert told(written, off, FAULT) == [failure]


def test_a_run_without_faults_or_without_anything_delivered_meanwhile_has_failed(written: Written) -> None:
    still = "nothing was delivered while faults lasted"
    assert told(written, exact(written)) == ["no fault happened", still]
    assert told(written, exact(written), replace(FAULT, began=2, ended=3)) == [still]


def test_the_same_seed_draws_the_same_faults() -> None:
    first, second, other = (list(islice(planned(seed, (1, 2)), 50)) for seed in (7, 7, 8))
    assert first == second != other
    assert {fault.kind for fault in first[: len(KINDS)]} == set(KINDS)
