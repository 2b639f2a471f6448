"""A slice of `make chaos`: every cheap kind of fault once, while transactions keep coming; and what such a run would tell."""

from __future__ import annotations

import asyncio
import csv
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pytest
from lab.scenarios.brokers import BREAKAGES
from lab.scenarios.chaos import RECOVERY_S, Outcome, idle_partitions, lived
from lab.scenarios.chaos_books import AMOUNTS, Difference, Found, Writer, Written, difference, number_of
from lab.scenarios.chaos_group import Group
from lab.scenarios.chaos_host import Failed
from lab.scenarios.chaos_plan import KILLS, KINDS, KINDS_OF, KINDS_ON, ROUND_ON, planned
from lab.scenarios.chaos_ranges import (
    BURST_EVENTS,
    LAST_EVENTS,
    LOG,
    PARTITIONS,
    SETUP,
    VARIABLE,
    Backlog,
    Copied,
    Row,
    copies_in,
)
from lab.scenarios.chaos_stalls import LOOK_S, STALL_S, Stalls
from lab.scenarios.chaos_waits import LINGERS_S, NOTICED_S, STOPS, Happened, Wait, of_spark
from lab.scenarios.place import place
from plugins_bank import Make, Open, claim, output, staged
from plugins_cli import events_in
from plugins_pg import Postgres

from leasehold.pipeline.spark.connect import Connected, lost_server
from leasehold.pipeline.spark.watch import forgotten, in_vain, lost, waits
from leasehold.service.cli.demo.transactions import Transaction, expected_balances, expected_events

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


def test_nothing_is_lost_or_duplicated_by_faults_that_overlap(outcome: Outcome, said: list[str]) -> None:
    assert not outcome.failures, "\n".join([*said, *outcome.told()])


def test_every_kind_of_fault_happened(outcome: Outcome) -> None:
    assert {each.kind for each in outcome.happened} == set(CHEAP)


def test_over_kafka_its_broker_is_among_the_victims() -> None:
    assert set(KINDS_OF["kafka"]) == set(KINDS_OF["pulsar"]) == {*KINDS, *BREAKAGES}


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
    assert replace(outcome, stalls=[(44.0, 44.8)]).false_lapses == 1


def test_a_disk_that_answers_late_is_a_stall_of_the_machine(tmp_path: Path) -> None:
    answers_s = iter([0.1, LOOK_S + STALL_S + 0.1, 0.1])
    at, is_over = 0.0, threading.Event()

    def sync(file: int) -> None:
        nonlocal at
        if (answer_s := next(answers_s, None)) is None:
            is_over.set()
        else:
            at += answer_s

    stalls = Stalls(tmp_path, sync, lambda: at)
    stalls.start()
    assert is_over.wait(60)
    stalls.close()
    assert stalls.spans == (pytest.approx((0.1, LOOK_S + STALL_S + 0.2)),)


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


class Flow:
    """Partitions whose positions move at each look, but for those that stand still. faults: looks while one lasts."""

    def __init__(self, *partitions: str, still: str = "", faults: int = 0) -> None:
        self._partitions = partitions
        self.looks = 0
        self._still, self._faults = still, faults

    @property
    def has_fault(self) -> bool:
        self.looks += 1
        return self.looks <= self._faults

    async def positions(self) -> dict[str, str]:
        return {each: "0" if each == self._still else str(self.looks) for each in self._partitions}

    async def idle(self, within_s: float, look_s: float) -> list[str]:
        return await idle_partitions(self, self.positions, within_s, look_s)  # type: ignore[arg-type]


@pytest.mark.virtual
async def test_each_partition_has_to_be_delivered_after_a_fault() -> None:
    assert await Flow("a", "b").idle(0.2, 0.01) == []
    assert await Flow("a", "b", still="a").idle(0.2, 0.01) == ["a"]


@pytest.mark.virtual
async def test_what_was_delivered_while_a_fault_lasted_does_not_count() -> None:
    flow = Flow("a", "b", faults=5)
    assert await flow.idle(0.05, 0.02) == []
    assert flow.looks == 7, "one look behind the fault, and one that compares"


@pytest.mark.virtual
async def test_a_database_that_tells_nothing_does_not_count_as_delivery() -> None:
    assert await Flow().idle(0.05, 0.01) == ["all"]


# What hosts have to say of Spark

SERVER = "the Spark Connect server at 'sc://127.0.0.1:1' cannot be used: "
AWAY, SILENT = SERVER + "connection refused: start it", "Spark at 'sc://127.0.0.1:1' has not answered for 20 s"
NO_EXECUTOR = "no executor of the Spark cluster at 'sc://127.0.0.1:1' has run a task of this job for 30 s"
DIED = "Spark's JVM has died; the next batch starts another"
NOT_OF_SPARK = "partition '0': the column 'Spark' is missing"
STOP = Happened("Connect server killed", 100, 110, is_calm=True)
LATER = replace(STOP, began=1100, ended=1110)
SOON = (Wait(STOP.began + 5, AWAY), Wait(LATER.began + 5, AWAY))


def of_waits(
    written: Written, happened: Sequence[Happened], logged: Sequence[Wait], told: Sequence[Wait], kind: str = "connect"
) -> list[str]:
    """The failures of a run in which nothing else was wrong."""
    whole = exact(written)
    return Outcome(
        len(written),
        [FAULT, *happened],
        whole,
        difference(written, whole),
        kinds=KINDS_ON[kind],
        waits_logged=logged,
        waits_told=told,
    ).failures


def test_each_stop_of_a_server_is_logged_and_told_by_rest(written: Written) -> None:
    assert of_waits(written, [STOP, LATER], SOON, SOON) == []


@pytest.mark.parametrize(
    "second",
    [
        Wait(LATER.ended + LINGERS_S + 1, AWAY),
        Wait(LATER.began - 1, AWAY),
        Wait(LATER.began + 5, NO_EXECUTOR),
        Wait(LATER.began + 5, SILENT),
        Wait(LATER.began + 5, NOT_OF_SPARK),
    ],
    ids=["too late", "too early", "of executors", "of a silent server", "of something else"],
)
def test_a_stop_of_a_server_of_which_only_others_words_are_said_is_a_failure(written: Written, second: Wait) -> None:
    words = "that a host waits for Spark after 1 of 2 faults: Connect server killed"
    others = (SOON[0], second)
    assert of_waits(written, [STOP, LATER], others, SOON) == [f"no log says {words}"]
    assert of_waits(written, [STOP, LATER], SOON, others) == [f"REST does not say {words}"]


@pytest.mark.parametrize("rival", ["Connect server frozen", "driver cut off", "master killed", "Connect server killed"])
def test_what_is_said_after_another_fault_of_the_server_is_not_said_of_the_one_before(
    written: Written, rival: str
) -> None:
    """The next fault begins 50 s after the stop, and what it makes hosts say is within a minute of the stop's end."""
    other = Happened(rival, STOP.began + 50, STOP.began + 55)
    neighbour = (Wait(other.began + 5, AWAY), SOON[1])
    assert of_waits(written, [STOP, other, LATER], SOON, SOON) == []
    assert of_waits(written, [STOP, other, LATER], neighbour, SOON) == [
        "no log says that a host waits for Spark after 1 of 2 faults: Connect server killed"
    ]


@pytest.mark.parametrize(
    "happened",
    [
        [replace(STOP, is_calm=False)],
        [STOP, Happened("Connect server frozen", STOP.began + NOTICED_S - 1, STOP.began + NOTICED_S)],
    ],
    ids=["hosts were waiting already", "the next fault came too soon"],
)
def test_a_stop_that_hosts_may_miss_need_not_be_told_if_another_one_is(
    written: Written, happened: list[Happened]
) -> None:
    assert of_waits(written, [*happened, LATER], SOON[1:], SOON[1:]) == []


@pytest.mark.parametrize(("error", "is_reported"), [(AWAY, True), (NO_EXECUTOR, False)])
def test_one_stop_of_all_has_to_be_told_even_if_hosts_may_miss_each(
    written: Written, error: str, is_reported: bool
) -> None:
    said = [Wait(STOP.began + 50, error)]
    expected = ["no log says that a host waits for Spark after 1 of 1 faults: Connect server killed"]
    found = of_waits(written, [replace(STOP, is_calm=False)], said, [Wait(STOP.began + 50, AWAY)])
    assert found == ([] if is_reported else expected)


@pytest.mark.parametrize(("error", "failures"), [(DIED, 0), (NO_EXECUTOR, 2)])
def test_a_death_of_a_host_s_spark_has_to_be_told_once(written: Written, error: str, failures: int) -> None:
    deaths = [Happened("Spark killed", began, began) for began in (100.0, 200.0)]
    said = [Wait(101.0, error)]
    assert len(of_waits(written, deaths, said, said, "cluster")) == failures


def test_without_a_cluster_nothing_is_demanded_of_rest(written: Written) -> None:
    whole = exact(written)
    death = Happened("Spark killed", 100, 100)
    assert Outcome(len(written), [FAULT, death], whole, difference(written, whole)).failures == []


@pytest.mark.parametrize(("logged", "told_by_rest"), [(NOT_OF_SPARK, NO_EXECUTOR), (NO_EXECUTOR, NOT_OF_SPARK)])
def test_kills_that_neither_logs_nor_rest_tell_of_are_a_failure(
    written: Written, logged: str, told_by_rest: str
) -> None:
    kill = replace(FAULT, kind="executor killed")
    logs, rest = [Wait(1.0, logged)], [Wait(1.0, told_by_rest)]
    assert len(of_waits(written, [kill], logs, rest, "cluster")) == 1
    assert of_waits(written, [kill], [Wait(1.0, NO_EXECUTOR)], [Wait(1.0, NO_EXECUTOR)], "cluster") == []


def test_the_words_are_those_of_the_errors_that_hosts_wait_with() -> None:
    """So that a change of a text changes what chaos looks for."""
    cluster = "spark://127.0.0.1:1"
    server = lost_server(ValueError(), Connected(cast(Any, None), remote="sc://127.0.0.1:1", is_lost=True))
    assert STOPS["Connect server killed"].words.search(str(server))
    texts = (str(server), waits(cluster), in_vain(cluster, 600.0), lost(cluster), forgotten(cluster))
    errors = [Wait(0, text) for text in texts]
    assert list(of_spark([*errors, Wait(0, NOT_OF_SPARK)])) == errors


class Asked(NamedTuple):
    """A host of a group, as far as REST is concerned. answers: one after the other."""

    answers: list[list[Failed]]
    is_up: bool = True
    has_started: bool = True

    def failures_of(self, role: str) -> list[Failed]:
        return self.answers.pop(0)


async def test_a_failure_that_rest_still_tells_is_noted_once() -> None:
    """Otherwise its report would belong to a fault that begins later."""
    first, again = (Failed("a", "0", count, AWAY) for count in (1, 2))
    group = Group.__new__(Group)
    group.waits_told = []
    group.hosts = {"a": Asked([[first], [first], [again], []])}  # type: ignore[dict-item]
    with pytest.raises(IndexError):  # no more answers
        await group.note_waits(0)
    assert [wait.error for wait in group.waits_told] == [AWAY] * 2


@pytest.mark.parametrize(("kind", "lines"), [("connect", 1), ("cluster", 0)])
def test_the_table_counts_the_restarts_of_a_forgotten_connect_server(written: Written, kind: str, lines: int) -> None:
    whole = exact(written)
    outcome = Outcome(len(written), [FAULT], whole, difference(written, whole), kinds=KINDS_ON[kind], restarts=3)
    found = [line for line in outcome.told() if line.startswith("Connect server restarted")]
    assert len(found) == lines
    assert all("       3" in line and "its master had forgotten it" in line for line in found)


# What executors read


FIRST_LATE = 5
SPAN = (0.0, 1.0)


def copied(rows: Sequence[tuple[int, bool, float]]) -> Copied:
    """Of one partition with ten events, the last five of them after the last fault. rows: number, whether staged, when."""
    return Copied({"0": 10}, {"0": FIRST_LATE}, [Row("0", number, is_staged, at) for number, is_staged, at in rows])


WHOLE = [(number, True, 0.5 if number < FIRST_LATE else 2.0) for number in range(10)]


def told_of(rows: Sequence[tuple[int, bool, float]]) -> list[str]:
    result, found = Difference(), copied(rows)
    found.compare(result)
    return [*result.lines(), *found.failures([SPAN], SPAN[1], RECOVERY_S)]


def test_what_executors_read_arrives_whole_and_in_order() -> None:
    assert copied(WHOLE).is_whole
    assert told_of(WHOLE) == []
    assert (copied(WHOLE).staged_late, copied(WHOLE).staged_within([SPAN])) == (5, 5)


def test_an_event_that_executors_lose_is_named() -> None:
    assert not copied(WHOLE[:3] + WHOLE[4:]).is_whole
    assert told_of(WHOLE[:3] + WHOLE[4:]) == ["lost in copies, partition 0: 3"]


def test_an_event_that_executors_duplicate_is_named() -> None:
    assert told_of([*WHOLE, WHOLE[3]]) == ["duplicated in copies, partition 0: 3"]


def test_events_that_executors_put_out_of_order_are_told() -> None:
    assert told_of([WHOLE[1], WHOLE[0], *WHOLE[2:]]) == ["wrong in copies, partition 0: out of order"]


NOTHING = "executors read and staged nothing"
LATE = f"{NOTHING} of what was written after the last fault"
IDLE = f"executors staged nothing for {RECOVERY_S} s after the last fault"
IN_TIME, TOO_LATE = SPAN[1] + RECOVERY_S - 1, SPAN[1] + RECOVERY_S + 1


@pytest.mark.parametrize(
    ("by_hosts", "at", "late_at", "failures"),
    [
        (range(10), 0.5, IN_TIME, [NOTHING, LATE]),
        (range(FIRST_LATE, 10), 0.5, IN_TIME, [LATE]),
        (range(FIRST_LATE), 0.5, IN_TIME, ["executors staged nothing while faults of Spark lasted"]),
        (range(1), 0.5, IN_TIME, []),
        ([], 0.5, TOO_LATE, [IDLE]),
        ([], 0.5, 0.6, [IDLE]),
    ],
)
def test_events_that_hosts_read_instead_of_executors_are_a_failure(
    by_hosts: Sequence[int], at: float, late_at: float, failures: list[str]
) -> None:
    rows = [(number, number not in by_hosts, at if number < FIRST_LATE else late_at) for number in range(10)]
    assert told_of(rows) == failures


@pytest.mark.parametrize(("kind", "counts"), [("master killed", True), ("host killed", False)])
def test_only_faults_of_spark_count_for_what_executors_stage_meanwhile(
    written: Written, kind: str, counts: bool
) -> None:
    whole = exact(written)
    happened = [Happened(kind, *SPAN)]
    outcome = Outcome(len(written), happened, whole, difference(written, whole), copied=copied(WHOLE))
    assert ("executors staged nothing while faults of Spark lasted" not in outcome.failures) == counts


@pytest.mark.parametrize("few", [1, 100], ids=["one message", "COPY"])
async def test_a_row_knows_whether_executors_staged_it(
    few: int, postgres: Postgres, sink_of: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, postgres.dsn)
    sink = sink_of(setup=SETUP, table="copies", executors_env=VARIABLE)
    await sink.prepare()
    writer = await sink.open(claim())
    await writer.write(output(rows(range(few))), Open())
    await writer.write(await staged(writer, [rows(range(few, 200))], "1", "2"), Open())
    found = (await asyncio.to_thread(copies_in, Backlog(tmp_path), postgres.dsn)).rows
    assert [(row.number, row.is_staged) for row in found] == [(number, number >= few) for number in range(200)]


def rows(numbers: range) -> pa.Table:
    columns = {"sequence": pa.array(numbers, pa.int64()), "number": pa.array(numbers, pa.int64())}
    return pa.table({"partition": ["0"] * len(numbers), **columns, "pad": ["x"] * len(numbers)})


async def test_the_backlog_is_written_in_bursts_of_one_partition_and_in_the_end_of_all(tmp_path: Path) -> None:
    backlog = Backlog(tmp_path)
    writing = asyncio.create_task(backlog.write(0))
    while backlog.written[PARTITIONS[-1]] < 2 * BURST_EVENTS:  # noqa: ASYNC110 - a log sends no events
        await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait({writing})
    assert backlog.written == dict.fromkeys(PARTITIONS, 2 * BURST_EVENTS)
    backlog.write_last()
    assert backlog.late == dict.fromkeys(PARTITIONS, 2 * BURST_EVENTS)
    assert await asyncio.to_thread(events_in, tmp_path / LOG) == {
        name: [{"n": number} for number in range(2 * BURST_EVENTS + LAST_EVENTS)] for name in PARTITIONS
    }


def test_the_same_seed_draws_the_same_faults() -> None:
    first, second, other = (list(islice(planned(seed, (1, 2)), 50)) for seed in (7, 7, 8))
    assert first == second != other
    assert {fault.kind for fault in first[: len(KINDS)]} == set(KINDS)


@pytest.mark.parametrize("spark", ROUND_ON)
def test_the_faults_of_make_cluster_are_of_all_kinds_and_kill_thirty_parts_at_least(spark: str) -> None:
    for seed in range(20):
        drawn = [fault.kind for fault in islice(planned(seed, (1, 2), ROUND_ON[spark]), 54)]
        assert set(drawn) == set(KINDS_ON[spark])
        assert sum(kind in KILLS for kind in drawn) >= 30
