"""A case's pipeline in hosts that die at every crash point that they reach.

The output must be that of an undisturbed run, whatever happens:

- the events are cut into batches at other places
- a host is killed at a crash point, and another process takes its name
- the sink's answer to a write is lost
- a host is cut off inside a write, another takes its leases, and the write arrives late
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest

from leasehold.pipeline.errors import EngineUnavailable, PipelineError
from leasehold.service.cases.compare import Pair, side_by_side
from leasehold.service.cases.disturbance import RECUTS, UNDISTURBED, Disturbance, Recut, disturbances
from leasehold.service.cases.disturbed_run import DisturbedRun, start_process
from leasehold.service.cases.judging import problems_of
from leasehold.service.cases.model import Case, PlacedCase
from leasehold.service.cases.modules import HandlerModules
from leasehold.service.cases.running import PreparedPipeline, Workbench, run_case
from leasehold.service.cases.scratch import Databases, RunFailed, State, open_scratch
from leasehold.service.config.custom import PythonSink
from leasehold.service.config.settings import Settings

SPLITS = 3
ROWS_SHOWN = 20
RENEWED = (
    "the new process has imported the handler's modules afresh: results in their variables are lost, so keep them in a file or a"
    " database"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kills:
    """How cases are killed. report: called with what each run does."""

    databases: Databases
    seed: int = 1
    report: Callable[[str], None] = lambda text: None


async def check_case(bench: Workbench, placed: PlacedCase, kills: Kills | None = None) -> list[str]:
    """What is wrong with a case, as lines for people; empty if nothing is. kills: None for no kills.

    Raises EngineUnavailable, StartFailed.
    """
    case = placed.case
    try:
        prepared = await bench.prepare(placed.pipeline)
    except EngineUnavailable:
        raise
    except PipelineError as error:
        return [str(error)]
    problems = problems_of(case, await run_case(prepared, case))
    if problems or kills is None or not case.kill or case.stops is not None:
        return problems
    return await kill_case(prepared, case, kills)


def unobservable(cases: Sequence[PlacedCase], settings: Settings) -> Iterator[str]:
    """Why cases cannot be killed."""
    sinks = {each.name: each.sink for each in settings.pipelines}
    for each in cases:
        is_handler = isinstance(sinks[each.pipeline], PythonSink)
        if is_handler and each.case.kill and each.case.state is None:
            yield (
                f"{each.place}: to see what the handler of '{each.pipeline}' has done, `--kill` needs `state` and `reset`:"
                " add them, or set `kill: false`"
            )


async def kill_case(prepared: PreparedPipeline, case: Case, kills: Kills) -> list[str]:
    """What differs between runs, as lines for people; empty if nothing does. Raises EngineUnavailable."""
    try:
        modules = _modules_of(prepared, case)
        with nullcontext() if modules is None else modules.lend():
            return await _kill_case(prepared, case, kills, modules)
    except EngineUnavailable:
        raise
    except (RunFailed, PipelineError) as error:
        return [str(error)]


def _modules_of(prepared: PreparedPipeline, case: Case) -> HandlerModules | None:
    settings = prepared.settings
    sink = settings.sink
    observers = [each for each in (case.state, case.reset) if each is not None]
    return HandlerModules(sink.handler, settings.function, observers) if isinstance(sink, PythonSink) else None


async def _kill_case(prepared: PreparedPipeline, case: Case, kills: Kills, modules: HandlerModules | None) -> list[str]:
    async def carry_out(seed: int | None, disturbance: Disturbance = UNDISTURBED) -> tuple[State, DisturbedRun]:
        await start_process(modules)
        try:
            async with open_scratch(prepared, case, kills.databases) as scratch:
                run = DisturbedRun(
                    prepared=prepared,
                    case=case,
                    scratch=scratch,
                    seed=seed,
                    disturbance=disturbance,
                    modules=modules,
                )
                return await run.carry_out(), run
        except RunFailed as error:
            raise RunFailed(f"{disturbance}: {error}") from error

    kills.report(str(UNDISTURBED))
    expected, run = await carry_out(None)
    kills.report(str(UNDISTURBED))
    again, _ = await carry_out(None)
    if modules is not None and modules.limit is not None:
        kills.report(f"limit: {modules.limit}")
    if differences := _differences(expected, again, "first run", "second run"):
        why = "it depends on which partition is written first, or on the time, or it has serial numbers"
        return [
            f"two undisturbed runs have different output: {why}. Leave out columns with `ignore`, or see `query` and `state`",
            *differences,
        ]
    seed = None
    if case.batches == "any":
        for seed in range(kills.seed, kills.seed + SPLITS):
            kills.report(f"batches are cut (seed {seed})")
            found, run = await carry_out(seed)
            if differences := _differences(expected, found, "one batch", "several batches"):
                what = f"the output depends on how events are cut into batches (seed {seed})"
                return [f"{what}; if it may, set `batches: one`", *differences]
    recuts: Sequence[Recut] = RECUTS if case.batches == "any" else ("whole",)
    planned = disturbances(run.reached, kills.seed, recuts, each=1 if modules is None else len(recuts))
    return await _disturb(partial(carry_out, seed), planned, expected, kills.report, modules)


async def _disturb(
    carry_out: Callable[[Disturbance], Awaitable[tuple[State, DisturbedRun]]],
    planned: Iterable[Disturbance],
    expected: State,
    report: Callable[[str], None],
    modules: HandlerModules | None,
) -> list[str]:
    """What differs after a disturbance, as lines for people; empty if nothing does. Reports those that did not happen."""
    missed = list[Disturbance]()
    for each in planned:
        for attempt in dict.fromkeys((each, replace(each, nth=1))):
            report(str(attempt) if attempt == each else f"the run did not get that far, so again: {attempt}")
            found, run = await carry_out(attempt)
            if differences := _differences(expected, found, "undisturbed", "disturbed"):
                renewed = [] if attempt.kind != "kill" or modules is None or not modules.renewed else [RENEWED]
                return [f"{attempt}: the output differs", *differences, *renewed]
            if run.is_disturbed:
                break
        else:
            missed.append(attempt)
    if missed:
        report(f"did not happen, because the runs did not get that far: {'; '.join(map(str, missed))}")
    return []


def _differences(expected: State, found: State, left: str, right: str) -> list[str]:
    lines = []
    for name in sorted(expected.keys() | found.keys()):
        one, other = expected.get(name, []), found.get(name, [])
        if one == other:
            continue
        missing, extra = (
            list((Counter(one) - Counter(other)).elements()),
            list((Counter(other) - Counter(one)).elements()),
        )
        if not (missing or extra):
            missing, extra = one, other  # another order
        pairs = [Pair(a, b, a == b) for a, b in zip_longest(missing, extra)]
        lines += [f"{name}:", *side_by_side(pairs[:ROWS_SHOWN], left, right)]
        if len(pairs) > ROWS_SHOWN:
            lines.append(f"... and {len(pairs) - ROWS_SHOWN} more")
    return lines
