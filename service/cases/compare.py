"""Compares what a case expects with what came out: exact values, rows in an order, and a text of two columns. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from leasehold.service.cases.values import is_same, shown

Order = Literal["any", "partition", "exact"]
WIDTH = 120


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """Rows of one schema."""

    schema: pa.Schema
    rows: Sequence[Mapping[str, Any]]


class Pair(NamedTuple):
    """An expected row and an actual one, as texts; None if one of them has no counterpart."""

    expected: str | None
    actual: str | None
    is_same: bool


def missing_columns(expected: Sequence[Mapping[str, Any]], schema: pa.Schema) -> list[str]:
    """Columns that expected rows have, and the output lacks."""
    return sorted({name for row in expected for name in row if name not in schema.names})


def paired(expected: Sequence[Mapping[str, Any]], actual: ComparedTable, order: Order) -> list[Pair]:
    """Every row of both sides once. Only the columns that an expected row names are compared."""
    columns = [name for name in actual.schema.names if any(name in row for row in expected)] or actual.schema.names
    couples = _in_any_order(expected, actual) if order == "any" else _in_order(expected, actual, order)
    return [
        Pair(
            None if i is None else shown(expected[i]),
            None if j is None else _row(actual.rows[j], expected[i] if i is not None else columns),
            is_equal,
        )
        for i, j, is_equal in couples
    ]


Couple = tuple[int | None, int | None, bool]


def _row(row: Mapping[str, Any], columns: Iterable[str]) -> str:
    return shown({name: row[name] for name in columns if name in row})


def _fits(expected: Mapping[str, Any], actual: Mapping[str, Any], schema: pa.Schema) -> bool:
    return all(
        name in actual and is_same(each, actual[name], schema.field(name).type) for name, each in expected.items()
    )


def _in_order(expected: Sequence[Mapping[str, Any]], actual: ComparedTable, order: Order) -> list[Couple]:
    """In one sequence, or, if the rows of both sides name their partition, in one for each."""
    has_partitions = "partition" in actual.schema.names and all("partition" in row for row in expected)
    if order != "partition" or not has_partitions:
        return _aligned(expected, actual, range(len(expected)), range(len(actual.rows)))
    names = dict.fromkeys([*(str(row["partition"]) for row in expected), *(str(r["partition"]) for r in actual.rows)])
    return [
        couple
        for name in names
        for couple in _aligned(
            expected,
            actual,
            [i for i, row in enumerate(expected) if str(row["partition"]) == name],
            [j for j, row in enumerate(actual.rows) if str(row["partition"]) == name],
        )
    ]


def _aligned(
    expected: Sequence[Mapping[str, Any]], actual: ComparedTable, left: Sequence[int], right: Sequence[int]
) -> list[Couple]:
    found: list[Couple] = []
    for n in range(max(len(left), len(right))):
        i, j = left[n] if n < len(left) else None, right[n] if n < len(right) else None
        is_equal = i is not None and j is not None and _fits(expected[i], actual.rows[j], actual.schema)
        found.append((i, j, is_equal))
    return found


def _in_any_order(expected: Sequence[Mapping[str, Any]], actual: ComparedTable) -> list[Couple]:
    """Pair as many equal rows as possible, because an expected row may fit several; pair the others by likeness."""
    fits = [[j for j, row in enumerate(actual.rows) if _fits(wanted, row, actual.schema)] for wanted in expected]
    matched = _matched(fits)
    of_row = {i: j for j, i in matched.items()}
    left = [i for i in range(len(expected)) if i not in of_row]
    right = [j for j in range(len(actual.rows)) if j not in matched]
    found: list[Couple] = [(i, of_row[i], True) for i in sorted(of_row)]
    for i in left:
        likeness = {j: _likeness(expected[i], actual.rows[j], actual.schema) for j in right}
        best = max(right, key=lambda j: (likeness[j], -j), default=None)
        if best is not None and (likeness[best] or len(right) <= len(left)):
            right.remove(best)
            found.append((i, best, False))
        else:
            found.append((i, None, False))
    return found + [(None, j, False) for j in right]


def _matched(fits: Sequence[Sequence[int]]) -> dict[int, int]:
    """Actual row -> expected row: a maximum matching, by augmenting paths."""
    taken: dict[int, int] = {}

    def place(i: int, seen: set[int]) -> bool:
        for j in fits[i]:
            if j not in seen:
                seen.add(j)
                if j not in taken or place(taken[j], seen):
                    taken[j] = i
                    return True
        return False

    for i in range(len(fits)):
        place(i, set())
    return taken


def _likeness(expected: Mapping[str, Any], actual: Mapping[str, Any], schema: pa.Schema) -> int:
    return sum(
        name in actual and is_same(each, actual[name], schema.field(name).type) for name, each in expected.items()
    )


def side_by_side(pairs: Sequence[Pair], left: str = "expected", right: str = "actual") -> list[str]:
    """Two columns; if rows are too wide for that, an actual row is below the expected one."""
    texts = [(pair.expected or "", pair.actual or "", " " if pair.is_same else "!") for pair in pairs]
    widths = [max(len(text[n]) for text in [*texts, (left, right)]) for n in (0, 1)]
    if sum(widths) + 5 <= WIDTH:
        lines = [f"  {left:<{widths[0]}} | {right}"]
        return lines + [f"{mark} {one:<{widths[0]}} | {other}".rstrip() for one, other, mark in texts]
    lines = [f"- {left}", f"+ {right}"]
    for pair in pairs:
        if pair.is_same:
            lines.append(f"  {pair.actual}")
            continue
        lines += [f"- {pair.expected}"] if pair.expected is not None else []
        lines += [f"+ {pair.actual}"] if pair.actual is not None else []
    return lines
