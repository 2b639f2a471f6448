"""Hosts are killed at every crash point: correct pipelines pass, and each kind of mistake is found."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from unit.service.cases.conftest import case_of, prepared

from leasehold import Event, Handler
from leasehold.leases.stores.memory import MemoryStore
from leasehold.pipeline.connectors.memory import Commit, MemoryDestination, MemoryOutputSink
from leasehold.pipeline.crash_point import POINTS, crash_point
from leasehold.pipeline.sink import Claim, Output, Sink
from leasehold.service.cases import killing
from leasehold.service.cases.disturbance import RECUTS, Disturbance, disturbances
from leasehold.service.cases.disturbed_run import DisturbedRun, Line, Severed, StoreBehindLine, random_cut
from leasehold.service.cases.ends import events_of
from leasehold.service.cases.killing import Kills, kill_case
from leasehold.service.cases.model import Case
from leasehold.service.cases.running import PreparedPipeline
from leasehold.service.cases.scratch import RunFailed, ScratchTables

HANDLER = '{type: python, handler: "tallies:Handler", gets: table}'
SIDE_BY_SIDE = '{type: python, handler: "tallies:Handler", parallel: {key: key, max: 4}}'
EVENTS = [{"key": "a", "body": str(n), "partition": str(n % 2)} for n in range(1, 9)]
AGAIN = "the run did not get that far, so again"
GENERIC = (
    *("lease acquired", "sink claimed", "position written", "page read", "batch transformed", "before write"),
    *("after write", "before checkpoint", "checkpointed", "before release", "released"),
)


async def kill(one: PreparedPipeline, case: Case, seed: int = 1) -> tuple[list[str], list[str]]:
    """The problems, and the runs."""
    runs: list[str] = []

    def no_databases() -> Any:
        raise AssertionError("only for PostgreSQL")

    return await kill_case(one, case, Kills(databases=no_databases, seed=seed, report=runs.append)), runs


@pytest.fixture
def tallies(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of a user with a handler, which a test completes."""
    module = ModuleType("tallies")
    module.done = []  # type: ignore[attr-defined]
    module.state = lambda: list(module.done)  # type: ignore[attr-defined]
    module.reset = module.done.clear  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tallies", module)
    return module


def handled(**keys: object) -> Case:
    return case_of(*EVENTS, state="tallies:state", reset="tallies:reset", **keys)


@pytest.mark.virtual
async def test_a_correct_pipeline_passes_every_crash_point_that_it_reaches() -> None:
    problems, runs = await kill(prepared(), case_of(*EVENTS))
    assert problems == []
    assert [run for run in runs if run == "undisturbed"] == 2 * ["undisturbed"]
    assert sum("batches are cut" in run for run in runs) == 3
    assert {point for point in POINTS if any(f"killed at '{point}'" in run for run in runs)} == set(GENERIC)
    assert any("the answer to a write is lost" in run for run in runs)
    assert any("a write of the first arrives" in run for run in runs)


@pytest.mark.virtual
async def test_a_kill_that_does_not_happen_is_tried_again_or_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def rare(*_: Any, **__: Any) -> Iterator[Disturbance]:
        yield Disturbance("kill", "before write", 1000)
        yield Disturbance("lost answer", nth=1000)
        yield Disturbance("late write", nth=1000)
        yield Disturbance("kill", "no such point", 2)
        yield Disturbance("kill", "nor this one")

    monkeypatch.setattr(killing, "disturbances", rare)
    problems, runs = await kill(prepared(), case_of(*EVENTS))
    assert problems == []
    assert [run.removeprefix(f"{AGAIN}: ") for run in runs if AGAIN in run] == [
        "killed at 'before write', and started again",
        "the answer to a write is lost",
        "a second host takes the leases, and then a write of the first arrives",
        "killed at 'no such point', and started again",
    ]
    assert runs[-1] == (
        "did not happen, because the runs did not get that far: killed at 'no such point', and started again;"
        " killed at 'nor this one', and started again"
    )


async def test_a_handler_that_tolerates_repeats_passes(tallies: ModuleType) -> None:
    class ByEvent(Handler):
        def process(self, table: pa.Table, context: Any) -> None:
            for row in table.to_pylist():
                if (found := (row["partition"], row["sequence"], row["body"])) not in tallies.done:
                    tallies.done.append(found)

    tallies.Handler = ByEvent  # type: ignore[attr-defined]
    tallies.state = lambda: sorted(tallies.done)  # type: ignore[attr-defined]
    problems, runs = await kill(prepared(HANDLER), handled())
    assert problems == []
    assert len([run for run in runs if AGAIN not in run]) == 2 + 3 + 4 * len(GENERIC) + 2


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_that_is_called_side_by_side_passes_if_it_tolerates_repeats(
    tallies: ModuleType, is_async: bool
) -> None:
    def note(changes: list[Event], context: Any) -> None:
        if (found := (changes[0].partition, changes[0].sequence)) not in tallies.done:
            crash_point("between look and note")
            tallies.done.append(found)

    async def note_async(changes: list[Event], context: Any) -> None:
        note(changes, context)

    tallies.Handler = note_async if is_async else note  # type: ignore[attr-defined]
    tallies.state = lambda: sorted(tallies.done)  # type: ignore[attr-defined]
    problems, runs = await kill(prepared(SIDE_BY_SIDE), handled())
    assert problems == []
    assert any("between look and note" in run for run in runs)
    assert asyncio.all_tasks() == {asyncio.current_task()}  # those of the hosts that were killed have ended


async def test_a_handler_that_is_called_side_by_side_and_counts_is_found_by_a_kill(tallies: ModuleType) -> None:
    async def count_event(changes: list[Event], context: Any) -> None:
        tallies.done.append((changes[0].body or b"").decode())

    tallies.Handler = count_event  # type: ignore[attr-defined]
    tallies.state = lambda: sorted(tallies.done)  # type: ignore[attr-defined]
    problems, _ = await kill(prepared(SIDE_BY_SIDE), handled())
    assert problems[0].startswith("killed at ")


async def test_a_handler_that_adds_is_found_by_a_kill(tallies: ModuleType) -> None:
    totals: Counter[str] = Counter()

    class Adds(Handler):
        def process(self, table: pa.Table, context: Any) -> None:
            for row in table.to_pylist():
                totals[row["key"]] += int(row["body"])

    tallies.Handler = Adds  # type: ignore[attr-defined]
    tallies.state = lambda: [dict(totals)]  # type: ignore[attr-defined]
    tallies.reset = totals.clear  # type: ignore[attr-defined]
    problems, _ = await kill(prepared(HANDLER), handled())
    assert problems[0].startswith("killed at ")  # after the write, or while another partition's write is not kept yet
    assert problems[1:3] == ["`tallies:state`:", "  undisturbed | disturbed"]
    assert problems[3].startswith("! {a: 36}")


async def test_a_crash_point_in_a_handler_ends_its_call(tallies: ModuleType) -> None:
    """It notes first that it is about to act, and takes that for done when the batch is repeated."""
    noted: set[int] = set()

    class NotesFirst(Handler):
        def process(self, table: pa.Table, context: Any) -> None:
            for row in table.to_pylist():
                if (event := (row["partition"], row["sequence"])) not in noted:
                    noted.add(event)
                    crash_point("between note and act")
                    tallies.done.append(row["body"].decode())

    tallies.Handler = NotesFirst  # type: ignore[attr-defined]
    tallies.state = lambda: sorted(tallies.done)  # type: ignore[attr-defined]

    def reset() -> None:
        noted.clear()
        tallies.done.clear()

    tallies.reset = reset  # type: ignore[attr-defined]
    problems, _ = await kill(prepared(HANDLER), handled())
    assert problems[0].startswith("killed at 'between note and act'")
    assert len(problems) == 4


@pytest.mark.parametrize("seed", range(1, 7))
async def test_a_handler_that_remembers_batches_by_their_first_event_is_found_by_each_seed(
    tallies: ModuleType, seed: int
) -> None:
    batches: dict[tuple[str, int], int] = {}

    class ByBatch(Handler):
        def process(self, table: pa.Table, context: Any) -> None:
            rows = table.to_pylist()
            batches.setdefault((rows[0]["partition"], rows[0]["sequence"]), sum(int(row["body"]) for row in rows))

    tallies.Handler = ByBatch  # type: ignore[attr-defined]
    tallies.state = lambda: [sum(batches.values())]  # type: ignore[attr-defined]
    tallies.reset = batches.clear  # type: ignore[attr-defined]
    events = [{"body": str(n)} for n in (1, 2, 5, 7, 9)]
    case = case_of(*events, state="tallies:state", reset="tallies:reset")
    problems, _ = await kill(prepared(HANDLER), case, seed)
    assert problems[0].startswith("killed at ")


SEEN_IN_MODULE = """
import json
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")
SEEN = set()

import leasehold

class Handler(leasehold.Handler):
    def process(self, table, context):
        totals = json.loads(FILE.read_text()) if FILE.exists() else {}
        for row in table.to_pylist():
            event = (row["partition"], row["sequence"])
            if event not in SEEN:
                SEEN.add(event)
                totals[row["key"]] = totals.get(row["key"], 0) + int(row["body"])
        FILE.write_text(json.dumps(totals))

def state():
    return [json.loads(FILE.read_text())] if FILE.exists() else []

def reset():
    FILE.unlink(missing_ok=True)
"""


async def test_what_a_handler_remembers_in_its_module_is_lost_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "remembers.py").write_text(SEEN_IN_MODULE)
    one = prepared('{type: python, handler: "remembers:Handler", gets: table}')
    problems, _ = await kill(
        one, case_of(*({"key": "a", "body": n} for n in "125"), state="remembers:state", reset="remembers:reset")
    )
    assert problems[0].startswith("killed at ")
    assert problems[-1].startswith("the new process has imported the handler's modules afresh")


async def test_what_a_handler_remembers_in_a_module_of_another_directory_is_lost_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, library = tmp_path / "app", tmp_path / "library"
    for folder in (app, library):
        folder.mkdir()
        monkeypatch.syspath_prepend(folder)
    (library / "seenlib.py").write_text("SEEN = set()\n")
    assert SEEN_IN_MODULE.count("SEEN = set()") == 1
    (app / "recalls.py").write_text(SEEN_IN_MODULE.replace("SEEN = set()", "from seenlib import SEEN"))
    one = prepared('{type: python, handler: "recalls:Handler", gets: table}')
    problems, runs = await kill(
        one, case_of(*({"key": "a", "body": n} for n in "125"), state="recalls:state", reset="recalls:reset")
    )
    assert problems[0].startswith("killed at ")
    assert not any(run.startswith("limit:") for run in runs)
    assert "seenlib" not in sys.modules


async def test_a_handler_in_a_file_that_stores_results_by_event_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    total = 'totals[row["key"]] = totals.get(row["key"], 0) + int(row["body"])'
    assert SEEN_IN_MODULE.count(total) == SEEN_IN_MODULE.count("event not in SEEN") == 1
    by_event = SEEN_IN_MODULE.replace(total, 'totals[str(event)] = int(row["body"])').replace(
        "event not in SEEN", "True"
    )
    (tmp_path / "stores.py").write_text(by_event)
    one = prepared('{type: python, handler: "stores:Handler", gets: table}')
    events = ({"key": "a", "body": n} for n in "125")
    problems, _ = await kill(one, case_of(*events, state="stores:state", reset="stores:reset"))
    assert problems == []
    assert "stores" not in sys.modules


async def test_a_handler_that_keeps_rows_until_it_is_closed_loses_them_with_its_process(tallies: ModuleType) -> None:
    class AtTheEnd(Handler):
        def __init__(self) -> None:
            self.rows: list[str] = []

        def process(self, table: pa.Table, context: Any) -> None:
            self.rows += [body.decode() for body in table["body"].to_pylist()]

        def close(self, context: Any, reason: str) -> None:
            tallies.done.extend(row for row in self.rows if row not in tallies.done)

    tallies.Handler = AtTheEnd  # type: ignore[attr-defined]
    tallies.state = lambda: sorted(tallies.done)  # type: ignore[attr-defined]
    problems, _ = await kill(prepared(HANDLER), handled())
    assert problems[0].startswith("killed at ")
    assert any(line.endswith(" |") for line in problems)


async def test_nothing_of_a_killed_host_reaches_the_lease_store() -> None:
    store, line = MemoryStore(), Line()
    behind = StoreBehindLine(store, line)
    await behind.create("a", "{}")
    line.cut()
    with pytest.raises(Severed):
        await behind.create("b", "{}")
    assert [stored.id for stored in await store.list("")] == ["a"]


def counts(events: pa.Table) -> pa.Table:
    return pa.table({"partition": [events["partition"][0].as_py()], "events": [events.num_rows]})


@pytest.mark.virtual
async def test_an_output_that_depends_on_batches_is_found_unless_it_may() -> None:
    one = prepared("{type: files, path: out}", counts)
    problems, runs = await kill(one, case_of(*EVENTS))
    assert (
        problems[0] == "the output depends on how events are cut into batches (seed 1); if it may, set `batches: one`"
    )
    assert any(line.startswith("! {partition: 0, events: 4} | {partition: 0, events: ") for line in problems)
    assert not any("killed" in run for run in runs)
    problems, runs = await kill(one, case_of(*EVENTS, batches="one"))
    assert problems == []
    assert not any("batches are cut" in run for run in runs)


@pytest.mark.virtual
async def test_an_output_that_always_differs_is_reported_as_such() -> None:
    numbers = itertools.count()
    one = prepared(
        "{type: files, path: out}", lambda events: events.append_column("n", pa.array([next(numbers)] * len(events)))
    )
    problems, _ = await kill(one, case_of("a", "b", ignore=["n"]))
    assert problems == []
    problems, runs = await kill(one, case_of("a", "b"))
    assert problems[0].startswith("two undisturbed runs have different output")
    assert len(runs) == 2


@pytest.mark.virtual
async def test_dead_letters_survive_kills_and_are_compared() -> None:
    one = prepared(apply=lambda events: events, dead_letters="{type: log, path: dead}")
    problems, _ = await kill(one, case_of("a", "poison", "b", "poison", "c", "d"))
    assert problems == []


async def test_a_partition_that_stops_is_reported(tallies: ModuleType) -> None:
    class Fails(Handler):
        async def process(self, table: pa.Table, context: Any) -> None:
            raise RuntimeError("no room")

    tallies.Handler = Fails  # type: ignore[attr-defined]
    ((problem,), _) = await kill(prepared(HANDLER), handled())
    assert problem.startswith("undisturbed: partition ")
    assert "RuntimeError: no room" in problem


class Broken(ScratchTables):
    """In memory, with a fault."""

    def __init__(self, destination: MemoryDestination) -> None:
        super().__init__()
        self._destination = destination

    def make_sink(self) -> Sink:
        return MemoryOutputSink(self._destination)


LATE = Disturbance("late write", nth=2)
LOST = Disturbance("lost answer", nth=2)


async def rows(scratch: ScratchTables, disturbance: Disturbance) -> int:
    run = DisturbedRun(
        prepared=prepared(), case=case_of("a", "b", "c", "d"), scratch=scratch, seed=1, disturbance=disturbance
    )
    return len((await run.carry_out())["partition 0"])


@pytest.mark.virtual
@pytest.mark.parametrize("disturbance", [LATE, LOST], ids=str)
async def test_a_sink_with_positions_and_epochs_takes_each_event_once(disturbance: Disturbance) -> None:
    assert await rows(ScratchTables(), disturbance) == 4


class Late(MemoryDestination):
    """Does not look at epochs."""

    def commit(self, claim: Claim, output: Output) -> None:
        self.commits.append(Commit(claim, output))
        self._positions[claim.pipeline, claim.partition, claim.generation] = output.to


@pytest.mark.virtual
async def test_a_write_that_arrives_late_is_seen_by_a_sink_that_does_not_look_at_epochs() -> None:
    assert await rows(Broken(Late()), LATE) > 4


class ForgetsPositions(Late):
    def claim(self, claim: Claim) -> str | None:
        super().claim(claim)
        return claim.continuation


@pytest.mark.virtual
async def test_a_lost_answer_repeats_a_write_into_a_sink_that_forgets_its_position() -> None:
    assert await rows(Broken(ForgetsPositions()), LOST) > 4


@pytest.mark.virtual
async def test_a_run_that_does_not_end_is_given_up() -> None:
    class Stuck(MemoryDestination):
        def commit(self, claim: Claim, output: Output) -> None:
            from leasehold.pipeline.errors import SinkUnavailable

            raise SinkUnavailable("the destination is away")

    with pytest.raises(RunFailed, match=r"has not ended within 120 s: the destination is away"):
        await rows(Broken(Stuck()), Disturbance("none"))


def test_each_point_is_chosen_once_at_a_time_that_the_seed_decides() -> None:
    reached = {"page read": 5, "before write": 5, "released": 1}
    found = list(disturbances(reached, seed=1))
    assert [each.kind for each in found] == ["kill", "kill", "kill", "lost answer", "late write"]
    assert all(1 <= each.nth <= 5 for each in found)
    assert found == list(disturbances(reached, seed=1))
    assert len({tuple(disturbances(reached, seed)) for seed in range(9)}) > 1
    assert [each.kind for each in disturbances({"released": 1}, seed=1)] == ["kill"]


def test_a_handler_is_killed_at_each_point_once_for_each_kind_of_batches() -> None:
    reached = {"page read": 5, "released": 1}
    found = [(each.point, each.again) for each in disturbances(reached, seed=1, each=len(RECUTS))]
    assert found == [(point, again) for point in reached for again in RECUTS]
    turns = [each.again for each in disturbances(dict.fromkeys("abcdef", 1), seed=1)]
    assert turns == [*RECUTS, *RECUTS[:2]]


def test_a_case_of_one_batch_is_not_cut_when_it_starts_again() -> None:
    assert {each.again for each in disturbances({"a": 1, "b": 1}, 1, ("whole",), each=1)} == {"whole"}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("total", [1, 2, 3, 20])
def test_events_are_cut_into_two_to_seven_batches(seed: int, total: int) -> None:
    cut = random_cut(str(seed), events_of(case_of(*map(str, range(total)))))
    index, batches = 0, 0
    while index < total:
        index += cut("0", index)
        batches += 1
    assert min(total, 2) <= batches <= 7
