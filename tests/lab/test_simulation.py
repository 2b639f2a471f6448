"""A short slice of the simulation and of its mutants. `make sim` and `make mutants` run them whole.

Besides, what they and the scenarios are asked for in vain is refused before anything is started.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest
from lab.scenarios import chaos, faults, letters, sinks
from lab.simulation import mutants, seeds
from lab.simulation import run as simulation_run
from lab.simulation.invariants import FASTEST, SLOWEST, Onlooker
from lab.simulation.mutants import MUTANTS, Edit, broken_by, changed
from lab.simulation.process import Process, held
from lab.simulation.quota import REFUSED_S, Quota
from lab.simulation.run import Verdict, simulated
from lab.simulation.setup import HINTED, LARGE, SINKS, TIGHT, Setup
from lab.simulation.shelf import Shelf
from lab.simulation.weather import Fate, Request, Weather

from leasehold.leases.lease import Lease
from leasehold.leases.timing import Timing

ROOT = Path(__file__).parents[2]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "tests", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


SLICE = (1, 4, 5, 9, 11, 12, 14, 16, 18, 24, 29, 32, 35, 41, 47, 74, 89, 92, 112, 117, 130, 132, 336)
slice_of = cache(partial(simulated, size=TIGHT))


@pytest.mark.parametrize("seed", range(1, 9))
def test_hosts_whose_hints_are_lost_late_and_repeated_violate_nothing(seed: int) -> None:
    """The store is like PostgreSQL."""
    verdict = simulated(seed, HINTED)
    assert verdict.found == (), seeds.report(verdict, HINTED)
    assert verdict.counts["hints"] > 0


@pytest.mark.parametrize("seed", SLICE)
def test_a_seed_violates_nothing(seed: int) -> None:
    verdict = slice_of(seed)
    assert verdict.found == (), seeds.report(verdict, TIGHT)
    assert verdict.counts["batches"] > 0


def test_where_every_host_is_about_to_stop_another_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one may give way to a dead one of its name: one seed in some hundred thousand."""
    monkeypatch.setattr(simulation_run, "_is_worked_on", lambda world: True)
    draining, at_work = (
        SimpleNamespace(host=SimpleNamespace(is_draining=is_so), leases_max=None) for is_so in (True, False)
    )
    limited = SimpleNamespace(host=SimpleNamespace(is_draining=False), leases_max=2)
    for alive, started in (
        ([], ["host-last"]),
        ([draining], ["host-last"]),
        ([draining, limited], ["host-last"]),
        ([draining, at_work], []),
    ):
        names: list[str] = []
        world = SimpleNamespace(alive=alive, started=names.append)
        assert simulation_run._taken_up(world)  # type: ignore[arg-type]
        assert names == started


def test_partitions_are_split_whatever_the_sink() -> None:
    split = [seed for seed in SLICE if slice_of(seed).counts["fault split"]]
    assert {Setup.drawn(seed, TIGHT).sink for seed in split} == set(SINKS)


@pytest.mark.parametrize("fault", ["delete", "rewrite", "garble", "reset", "kill", "stop", "outage"])
def test_the_slice_has_what_befalls_documents_and_hosts(fault: str) -> None:
    assert sum(slice_of(seed).counts[f"fault {fault}"] for seed in SLICE) > 0


@pytest.mark.parametrize("fault", ["pause", "host document", "info document"])
def test_the_slice_has_what_befalls_documents_that_are_no_leases(fault: str) -> None:
    assert sum(slice_of(seed).counts[f"fault {fault}"] for seed in SLICE) > 0


def test_the_slice_has_hosts_of_two_pipelines_and_such_that_want_only_so_many_leases() -> None:
    setups = [Setup.drawn(seed, TIGHT) for seed in SLICE]
    assert {len(setup.pipelines) for setup in setups} == {1, 2}
    assert {setup.leases_max is None for setup in setups} == {True, False}


@pytest.mark.parametrize("hardship", ["throttled", "torn listings", "lagging replicas", "slow sinks"])
def test_the_slice_has_services_that_are_busy_or_lag(hardship: str) -> None:
    assert sum(slice_of(seed).counts[hardship] for seed in SLICE) > 0


@pytest.mark.parametrize(
    "event",
    ["fault restore", "discarded batches", "tails that were measured", "leases given up in calm", "calls side by side"],
)
def test_the_slice_has_what_befalls_sinks(event: str) -> None:
    assert sum(slice_of(seed).counts[event] for seed in SLICE) > 0


def test_few_seeds_have_every_sink_and_every_kind_of_operator() -> None:
    setups = [Setup.drawn(seed, TIGHT) for seed in range(1, 30)]
    assert {setup.sink for setup in setups} == set(SINKS)
    assert {setup.operator for setup in setups} == {"away", "resets", "tampers"}
    assert {setup.splits for setup in setups} == {True, False}


@pytest.mark.parametrize(
    ("seed", "sink"),
    [
        ("14", "log"),
        ("1", "postgres"),
        ("3", "files"),
        ("2", "async"),
        ("12", "eventhubs"),
        ("18", "python"),
        ("116", "kafka"),
    ],
)
def test_a_seed_is_the_same_to_the_last_step_under_any_hash_seed(seed: str, sink: str) -> None:
    assert Setup.drawn(int(seed), TIGHT).sink == sink
    here, there = (
        run("lab.simulation.seeds", "--seed", seed, "--size", "tight", PYTHONHASHSEED=hashes) for hashes in ("1", "2")
    )
    assert here.returncode == 0
    assert len(here.stdout.splitlines()) > 100
    assert here.stdout == there.stdout


def test_a_violation_is_told_with_the_command_that_replays_it_and_the_end_of_its_trace() -> None:
    trace = tuple(f"line {n}" for n in range(100))
    told = seeds.report(Verdict(7, ("I3 at 1.000: two owners",), "", trace, Counter(), 1.0), LARGE)
    assert "I3 at 1.000: two owners" in told
    assert "line 99" in told
    assert "line 1\n" not in told
    assert "make sim SEED=7 SIZE=large" in told


@pytest.mark.virtual
async def test_a_delayed_request_arrives_just_before_the_one_that_is_the_last_to_overtake_it() -> None:
    weather, arrived = Weather(), list[str]()
    late, here = Request("host-a", "sink", "publish", "p"), Request("host-b", "sink", "attach", "p")
    weather.delay(late, Fate(30.0, "late", overtaken_by=2), lambda: arrived.append("late"))
    weather.reaches(Request("host-b", "sink", "attach", "another"))
    weather.reaches(here)
    assert arrived == []
    weather.reaches(here)
    assert arrived == ["late"]
    await asyncio.sleep(60)
    assert arrived == ["late"], "once"


@pytest.mark.virtual
async def test_a_delayed_request_that_nobody_overtakes_arrives_all_the_same() -> None:
    weather, arrived = Weather(), list[float]()
    fate, now = Fate(30.0, "late", overtaken_by=2), asyncio.get_running_loop().time
    weather.delay(Request("host-a", "sink", "publish", "p"), fate, lambda: arrived.append(now()))
    await asyncio.sleep(60)
    assert arrived == [30.0]


@pytest.mark.virtual
async def test_timers_of_one_moment_go_off_in_the_order_in_which_they_were_set() -> None:
    loop, fired = asyncio.get_running_loop(), list[int]()
    for n in (3, 1, 2):
        loop.call_at(5.0, fired.append, n)
    loop.call_at(4.0, fired.append, 0)
    loop.call_at(4.5, fired.append, 9).cancel()
    await asyncio.sleep(5.0)
    assert fired == [0, 3, 1, 2]


def test_seeds_in_which_nothing_happens_are_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = Verdict(1, (), "", (), Counter(), 420.0)
    monkeypatch.setattr(seeds, "verdicts", lambda wanted, name: iter([nothing]))
    assert seeds.ran(1, 1, "tight") == 1
    assert "no batches, no sends, no faults" in capsys.readouterr().out


@pytest.mark.parametrize("asked", ["--seeds=0", "--seeds=-3", "--seed=-1", "--first=-5", "--first=half"])
def test_a_number_of_seeds_that_is_none_is_refused(
    asked: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["seeds", asked])
    with pytest.raises(SystemExit, match="2"):
        seeds.main()
    assert f"'{asked.partition('=')[2]}' is not a positive whole number" in capsys.readouterr().err


@pytest.mark.virtual
async def test_a_process_that_is_held_sends_once_it_continues_and_a_killed_one_never() -> None:
    loop, sent = asyncio.get_running_loop(), list[float]()

    def send() -> asyncio.Future[str]:
        sent.append(loop.time())
        answer: asyncio.Future[str] = loop.create_future()
        loop.call_later(1.0, answer.set_result, "yes")
        return answer

    async def ask() -> str:
        return await held(5.0, send)

    going, killed = Process("host-a-1"), Process("host-b-2")
    asked = going.start(ask())
    killed.start(ask())
    await asyncio.sleep(2.0)
    assert going.is_stopped
    await killed.kill()
    assert await asked == "yes"
    assert (sent, loop.time()) == ([5.0], 6.0)


def test_of_a_silence_in_an_outage_of_all_writes_only_what_a_host_may_judge_counts() -> None:
    clock = SimpleNamespace(now=0.0)
    onlooker = onlooker_of(0, Timing(), now=lambda: clock.now)

    def writes_fail(at: float, is_so: bool) -> None:
        clock.now = at
        onlooker.writes_fail(is_so)

    judging_s, grace_s = 3.62 / SLOWEST, 6.08 / FASTEST
    for at, is_so in ((100.0, True), (104.0, True), (110.0, False), (120.0, False)):
        writes_fail(at, is_so)
    assert onlooker.counted_s(98.0, 100.0) == 2.0
    assert onlooker.counted_s(98.0, 115.0) == pytest.approx(2.0 + judging_s)
    assert onlooker.counted_s(98.0, 120.0 + grace_s - 0.01) == pytest.approx(2.0 + judging_s), "the grace"
    assert onlooker.counted_s(98.0, 120.0 + grace_s) == pytest.approx(2.0 + grace_s)
    writes_fail(200.0, True)
    writes_fail(203.0, False)
    assert onlooker.counted_s(198.0, 206.0) == 8.0, "too short to be noticed"
    writes_fail(300.0, True)
    assert onlooker.counted_s(298.0, 400.0) == pytest.approx(2.0 + judging_s)
    writes_fail(300.0, True)
    onlooker.calm()
    assert onlooker.counted_s(298.0, 400.0) == 102.0


def onlooker_of(events: int, timing: Timing | None = None, now: Callable[[], float] = lambda: 100.0) -> Onlooker:
    """Of partitions that have so many events each."""
    return Onlooker(
        timing=timing or Timing(),
        now=now,
        passes=lambda number: True,
        ends=lambda name: events,
        parents=lambda name: (),
        start=lambda name: 0,
        exactly_once=True,
        batch_events_max=3,
    )


def test_the_end_of_a_run_finds_an_idle_lease_that_lags_behind_what_is_delivered() -> None:
    onlooker = onlooker_of(7)
    at_the_end = Lease(pipeline="bank", partition="a", continuation="7")
    onlooker.check_idle([at_the_end, replace(at_the_end, continuation="3", closed=True)])
    assert onlooker.found == []
    onlooker.check_idle([replace(at_the_end, continuation="3")])
    assert onlooker.found == ["R4 at 100.000: all 7 events of 'a' are delivered, and its idle lease says 3"]


def test_a_host_that_could_not_read_its_leases_for_long_is_found() -> None:
    onlooker = onlooker_of(0)
    onlooker.check_scans({"host-a": 60.5, "host-b": 99.0}, ["host-a", "host-b"], 40.0)
    assert onlooker.found == []
    onlooker.check_scans({"host-a": 60.0, "host-b": 99.0}, ["host-a", "host-b", "host-c"], 40.0)
    assert onlooker.found == ["overload at 100.000: ['host-a', 'host-c'] could read no leases for 40.0 s"]


def test_a_lease_that_is_given_up_behind_what_has_arrived_is_found_once_all_is_calm() -> None:
    onlooker = onlooker_of(4)
    lease = Lease(pipeline="bank", partition="a").acquired("host-a", "host-a-1", "")
    onlooker.rates["host-a-1"] = 1.0
    onlooker.arrives("a", 0, [0, 1, 2, 3])
    onlooker.wrote("host-a-1", lease, lease.checkpointed("3", "").released(), 99.0)
    assert onlooker.found == []
    onlooker.is_calm = True
    onlooker.wrote("host-a-1", lease, lease.checkpointed("4", "").released(), 99.0)
    assert onlooker.found == []
    onlooker.wrote("host-a-1", lease, lease.checkpointed("3", "").released(), 99.0)
    assert onlooker.found == ["R4 at 100.000: the lease of 'a' is given up at 3, and what lies below 4 has arrived"]


def test_what_a_restore_took_has_to_arrive_once_more_and_nothing_else() -> None:
    onlooker = onlooker_of(4)
    onlooker.arrives("a", 0, [0, 1])
    backup = onlooker.backup()
    onlooker.arrives("a", 0, [2, 3])
    onlooker.restored(backup)
    onlooker.arrives("a", 0, [2])
    assert onlooker.found == []
    onlooker.arrives("a", 0, [1])
    assert onlooker.found == ["I1 at 100.000: event 1 of 'a' arrived twice"]


def test_a_file_is_missed_where_readers_look_for_it_and_not_where_its_entry_was_folded_away() -> None:
    def manifest(first: int, last: int, *files: str) -> tuple[str, bytes]:
        name = f"{first:012d}" if first == last else f"{first:012d}-{last:012d}"
        return f"_leasehold/bank/p/{name}.json", json.dumps({"files": [{"name": each} for each in files]}).encode()

    shelf = Shelf(onlooker_of(4), cast(Weather, None))
    shelf._files = dict([manifest(0, 3, "a"), manifest(1, 1, "late"), manifest(4, 4, "b"), ("a", b""), ("b", b"")])
    assert shelf.missing() == []
    del shelf._files["a"], shelf._files["b"]
    assert shelf.missing() == ["a", "b"]


def test_a_word_that_no_mutant_has_is_refused_with_the_names_that_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mutants", "--only", "no such word"])
    with pytest.raises(SystemExit, match="2"):
        mutants.main()
    told = capsys.readouterr().err
    assert "no mutant's name contains 'no such word'" in told
    assert all(mutant.name in told for mutant in MUTANTS)


@pytest.mark.parametrize(
    ("module", "more", "a_name"),
    [
        (faults, [], "slow, steal"),
        (faults, ["--feed", "nats"], "broker frozen"),
        (sinks, ["--sink", "http"], "before submit"),
        (letters, [], "log with log"),
    ],
)
def test_a_word_that_no_scenario_has_is_refused_with_the_words_that_there_are(
    module: ModuleType,
    more: list[str],
    a_name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["scenarios", *more, "--only", "no such word"])
    with pytest.raises(SystemExit, match="2"):
        module.main()
    told = capsys.readouterr().err
    assert "no case's name contains 'no such word'" in told
    assert f"; {a_name}" in told or f": {a_name}" in told


@pytest.mark.parametrize("asked", ["0", "-1", "nan", "inf", "1e308"])
def test_minutes_of_chaos_that_are_none_are_refused(
    asked: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["chaos", "--minutes", asked])
    with pytest.raises(SystemExit, match="2"):
        chaos.main()
    assert f"'{asked}' is no length of time" in capsys.readouterr().err


def test_a_mutant_that_changes_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="0 times"):
        changed("a = 1", [Edit("module", "a = 2", "a = 3")])
    with pytest.raises(ValueError, match="holds 2 times"):
        changed("a = 1; a = 1", [Edit("module", "a = 1", "a = 3")])
    with pytest.raises(ValueError, match="holds 1 times"):
        changed("a = 1", [Edit("module", "a = 1", "a = 1")])


def test_a_mutant_that_brings_a_name_its_module_does_not_know_is_refused() -> None:
    text = "import os\ndef a(b):\n    return [c for c in os.listdir(b)]"
    assert "os.sep" in changed(text, [Edit("module", "os.listdir(b)", "os.sep")])
    with pytest.raises(ValueError, match="module does not know began, shutil"):
        changed(text, [Edit("module", "os.listdir(b)", "shutil.copy(began)")])


def test_a_mutant_that_breaks_the_program_is_not_caught() -> None:
    assert broken_by("host-1 ends: AttributeError: 'Lease' object has no attribute 'x'\nlost").startswith(
        "AttributeError"
    )
    assert broken_by("VIOLATED I3: LeaseLost: lease '7' is held by 'b'") == ""


def test_every_test_that_catches_a_mutant_is_there() -> None:
    tests = [planted.test.partition("::") for planted in MUTANTS if planted.test]
    assert len(tests) >= 8
    assert [name for file, _, name in tests if f"def {name}" not in (ROOT / file).read_text()] == []


@pytest.mark.parametrize(
    "name",
    [
        "a lease is taken whatever its ETag",
        "hosts are dead after half their duration",
        "bounds of ranges are ordered as texts",
    ],
)
def test_a_mutant_is_caught(name: str) -> None:
    hunt = run("lab.simulation.mutants", "--hunt", name, "--seeds", "10")
    assert hunt.returncode == 0, hunt.stderr
    assert 1 <= int(hunt.stdout.split()[0]) <= 10


def test_a_mutant_that_is_not_caught_fails_the_hunt() -> None:
    hunt = run("lab.simulation.mutants", "--hunt", "a broker takes what was outranked", "--seeds", "0")
    assert hunt.returncode == 1
    assert "not caught" in hunt.stdout


def test_a_mutant_whose_test_passes_is_not_caught() -> None:
    passes = "tests/unit/leases/test_timing_backoff.py"
    there = subprocess.run(
        [sys.executable, "-c", f"from lab.simulation.mutants import tested; raise SystemExit(tested({passes!r}))"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "tests"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (there.returncode, there.stdout) == (1, "0 not caught: it passes\n")


def test_a_quota_lets_a_group_have_so_much_and_says_when_there_is_more() -> None:
    quota, read, listing = Quota(2.0, list_pages=3, closes=10, opens=12, burst_s=2), of_kind("read"), of_kind("list")
    assert quota.fate(read, 9.0) is None
    assert quota.fate(read, 10.0) == Fate(REFUSED_S, "refused", retry_after_s=2.5)
    assert [quota.fate(read, 14.0) for _ in range(3)] == [None] * 3
    assert quota.fate(listing, 14.0) == Fate(REFUSED_S, "refused", retry_after_s=1.75)
    assert quota.fate(listing, 15.74) is not None
    assert quota.fate(listing, 15.74 + 1.51) is None
    assert (quota.succeeded, quota.refused) == ([17.25], 3)


def of_kind(operation: str) -> Request:
    return Request("host-a", "store", operation)
