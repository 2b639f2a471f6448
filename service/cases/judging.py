"""Whether a case has the result that it expects, and its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leasehold.pipeline.errors import SinkRejected
from leasehold.service.cases.compare import Pair, missing_columns, paired, side_by_side
from leasehold.service.cases.model import Case, PlacedCase
from leasehold.service.cases.running import Result
from leasehold.service.texts import counted


def problems_of(case: Case, result: Result) -> list[str]:
    """What differs from what the case expects, as lines for people; empty if nothing does."""
    return [*_stops(case, result), *_rows(case, result), *_letters(case, result)]


def _stops(case: Case, result: Result) -> list[str]:
    if case.stops is None:
        return [
            f"{'the sink refuses the output of ' if isinstance(error, SinkRejected) else ''}partition '{partition}'"
            f"{':' if isinstance(error, SinkRejected) else ' stops:'} {error}"
            for partition, error in result.stopped.items()
        ]
    if not any(case.stops in str(error) for error in result.stopped.values()):
        found = "; ".join(map(str, result.stopped.values())) or "nothing stopped"
        return [f"a partition should stop with an error that contains '{case.stops}', and: {found}"]
    return []


def _rows(case: Case, result: Result) -> list[str]:
    found = []
    names = result.table.schema.names
    if result.stopped and case.stops is None:
        return []  # the error is why rows are missing
    if case.columns is not None and list(case.columns) != names:
        found += side_by_side(
            [Pair(", ".join(case.columns), ", ".join(names), False)], "expected columns", "actual columns"
        )
    if case.rows is None:
        return found
    if missing := missing_columns(case.rows, result.table.schema) if names else []:
        return [*found, f"the output has no column {', '.join(map(repr, missing))}: it has {', '.join(names)}"]
    pairs = paired(case.rows, result.table, case.order)
    if all(pair.is_same for pair in pairs):
        return found
    how = {"any": "", "partition": ", in the order of each partition", "exact": ", in this order"}[case.order]
    return [*found, f"{counted(len(case.rows), 'row')} expected{how}:", *side_by_side(pairs)]


def _letters(case: Case, result: Result) -> list[str]:
    if result.stopped and case.stops is None:
        return []
    expected: Mapping[int, str] = {each.event: each.reason for each in case.dead_letters}
    pairs = [
        Pair(
            (f"event {n}: ... {expected[n]} ..." if expected[n] else f"event {n}") if n in expected else None,
            f"event {n}: {result.dead[n]}" if n in result.dead else None,
            n in expected and n in result.dead and expected[n] in result.dead[n],
        )
        for n in sorted({*expected, *result.dead})
    ]
    return [] if all(pair.is_same for pair in pairs) else ["dead letters:", *side_by_side(pairs)]


def report(placed: PlacedCase, problems: Sequence[str]) -> str:
    lines = "\n".join(f"    {line}" for problem in problems for line in problem.splitlines())
    return f"{placed.place}: {placed.case.name} (pipeline {placed.pipeline})\n{lines}"
