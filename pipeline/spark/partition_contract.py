"""The partition contract, read off Spark's optimized plan: does output keep its partition, and may partitions share a job? Pure.

A job may be shared if its result for a partition cannot depend on which other partitions are in it. So every aggregate,
window and join must be keyed by the input's `partition`, and no limit or sort may span partitions. A column of that name in the
output proves nothing: `row_number() OVER (PARTITION BY account)` keeps it and mixes partitions all the same. So the column
is traced by its id, through aliases. What is not known to keep partitions apart counts as mixing them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

PARTITION = "partition"
_RANDOM = "an expression whose value depends on where or when a row is processed"
_SUBQUERIES = frozenset(
    ("ScalarSubquery", "LateralSubquery", "Exists", "InSubquery", "ListQuery", "DynamicPruningSubquery")
)
_ANY_ORDER = frozenset(("First", "Last", "CollectList", "CollectSet", "ListAgg"))
"""Aggregates whose result depends on the order in which rows arrive, which Spark calls deterministic all the same."""
_ROW_BY_ROW_UDFS = frozenset((100, 101))
"""Spark's evaluation types of Python functions that see one row. All others see several, perhaps of several partitions."""
_KEEP_LEFT = frozenset(("Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"))
_KEEP_RIGHT = frozenset(("Inner", "Cross", "RightOuter"))


@dataclass(frozen=True, slots=True)
class Expression:
    kind: str
    fields: Mapping[str, Any]
    children: tuple[Expression, ...]

    @property
    def id(self) -> int:
        return int(self.fields["exprId"]["id"])

    def walk(self) -> Iterator[Expression]:
        waiting = [self]
        while waiting:
            each = waiting.pop()
            yield each
            waiting += reversed(each.children)


@dataclass(frozen=True, slots=True)
class Node:
    kind: str
    fields: Mapping[str, Any]
    children: tuple[Node, ...]

    def expressions(self, name: str) -> tuple[Expression, ...]:
        """The expressions of a field that holds a list of them, or one."""
        value = self.fields.get(name)
        if not isinstance(value, list) or not value:
            return ()
        return tuple(_expression(each) for each in (value if isinstance(value[0], list) else [value]))

    def all_expressions(self) -> Iterator[Expression]:
        for value in self.fields.values():
            for flat in _flat_expressions(value):
                yield from _expression(flat).walk()


@dataclass(frozen=True, slots=True)
class Contract:
    """keeps_partition: None if only the output's values show it. why_not: why batches may not share jobs; None: they may."""

    keeps_partition: bool | None
    why_not: str | None


@dataclass(frozen=True, slots=True)
class Rows:
    """What is known about the rows that leave a node."""

    columns: tuple[int, ...] | None
    """Ids in order, None if the order is not known."""
    own: frozenset[int] = frozenset()
    """Columns that hold the partition of every event a row was made from."""
    maybe: frozenset[int] = frozenset()
    """The same, or null (outer joins)."""
    of_events: bool = False
    """Whether rows were made from events at all, and not from constants."""
    mixes: str | None = None
    """Why partitions do not stay apart; None if they do."""
    is_opaque: bool = False

    def mixed(self, why: str) -> Rows:
        """The same rows, marked as mixed, unless they are made from constants."""
        return self if self.mixes or not self.of_events else replace(self, mixes=why)


def read_contract(
    plan: Sequence[Mapping[str, Any]], *, sources: frozenset[int], output: int, is_deterministic: bool
) -> Contract:
    """plan: `optimizedPlan().toJSON()`, decoded. sources: the ids under which the events' `partition` enters it.

    output: the id of the output's `partition`. is_deterministic: Spark's verdict on the whole plan.
    """
    rows = _followed(_node(iter(plan)), sources)
    why_not = rows.mixes if is_deterministic or rows.mixes else _RANDOM
    return Contract(None if rows.is_opaque else output in rows.own, why_not)


def _followed(node: Node, sources: frozenset[int]) -> Rows:
    inputs = [_followed(child, sources) for child in node.children]
    if not inputs:
        return _leaf(node, sources)
    rows = _STEPS.get(node.kind, _unknown)(node, inputs)
    mixes = next((each.mixes for each in inputs if each.mixes), None) or _barred(node) or rows.mixes
    return replace(rows, mixes=mixes, is_opaque=rows.is_opaque or any(each.is_opaque for each in inputs))


def _barred(node: Node) -> str | None:
    for expression in node.all_expressions():
        if expression.kind in _SUBQUERIES:
            return f"a subquery ({expression.kind}) looks at all partitions at once"
        if expression.kind in _ANY_ORDER and node.kind == "Aggregate":
            return f"an aggregate ({expression.kind}) that depends on the order in which rows arrive"
    return None


def _leaf(node: Node, sources: frozenset[int]) -> Rows:
    columns = _ids(node.expressions("output"))
    if own := sources.intersection(columns):
        return Rows(columns, own=own, of_events=True)
    if node.kind in ("LocalRelation", "OneRowRelation", "Range"):
        return Rows(columns)
    return Rows(columns, of_events=True, mixes=f"{node.kind}: a source other than the events", is_opaque=False)


# One step for each kind of node


def _passed(node: Node, inputs: Sequence[Rows]) -> Rows:
    return inputs[0]


def _unknown(node: Node, inputs: Sequence[Rows]) -> Rows:
    why = f"{node.kind} is not known to keep partitions apart"
    return Rows(None, of_events=any(each.of_events for each in inputs), is_opaque=True).mixed(why)


def _limited(node: Node, inputs: Sequence[Rows]) -> Rows:
    return inputs[0].mixed("a limit over all partitions")


def _sorted(node: Node, inputs: Sequence[Rows]) -> Rows:
    return inputs[0].mixed("a sort over all partitions") if node.fields.get("global") else inputs[0]


def _projected(node: Node, inputs: Sequence[Rows]) -> Rows:
    return _named(node.expressions("projectList"), inputs[0])


def _aggregated(node: Node, inputs: Sequence[Rows]) -> Rows:
    rows = _named(node.expressions("aggregateExpressions"), inputs[0])
    if _has_partition(node.expressions("groupingExpressions"), inputs[0]):
        return rows
    return replace(rows, own=frozenset(), maybe=frozenset()).mixed("an aggregate that is not grouped by `partition`")


def _windowed(node: Node, inputs: Sequence[Rows]) -> Rows:
    rows = _with_columns(inputs[0], node.expressions("windowExpressions"))
    if _has_partition(node.expressions("partitionSpec"), inputs[0]):
        return rows
    return rows.mixed("a window that is not partitioned by `partition`")


def _generated(node: Node, inputs: Sequence[Rows]) -> Rows:
    if any("UDTF" in e.kind or "UserDefined" in e.kind for e in node.all_expressions()):
        return _unknown(node, inputs)
    return replace(inputs[0], columns=None)  # the JSON does not say which of the input's columns are left


def _expanded(node: Node, inputs: Sequence[Rows]) -> Rows:
    """Grouping sets, and several DISTINCTs in one aggregate: each row is repeated."""
    lists = [[_expression(flat) for flat in projection] for projection in node.fields["projections"]]
    columns = _ids(node.expressions("output"))
    kept = (all(_is_own(e, inputs[0]) for e in each) for each in zip(*lists, strict=True))
    own = frozenset(column for column, is_kept in zip(columns, kept, strict=True) if is_kept)
    return replace(inputs[0], columns=columns, own=own, maybe=frozenset())


def _united(node: Node, inputs: Sequence[Rows]) -> Rows:
    every = [each.columns for each in inputs if each.columns is not None]
    if len(every) != len(inputs):
        return _unknown(node, inputs)
    positions = list(zip(*every, strict=True))
    own = (ids[0] for ids in positions if all(column in each.own for column, each in zip(ids, inputs, strict=True)))
    return Rows(every[0], own=frozenset(own), of_events=any(each.of_events for each in inputs))


def _python(node: Node, inputs: Sequence[Rows]) -> Rows:
    rows = _with_columns(inputs[0], node.expressions("resultAttrs"))
    if node.fields.get("evalType", 100) in _ROW_BY_ROW_UDFS:
        return rows
    return rows.mixed("a pandas or Arrow function, which sees many rows at once")


def _joined(node: Node, inputs: Sequence[Rows]) -> Rows:
    left, right = inputs
    kind = _kind_of(node.fields.get("joinType"))
    rows = _sides(kind, left, right)
    if left.of_events and right.of_events:
        return rows if _equates_partitions(node, left, right) else rows.mixed("a join that does not equate `partition`")
    keeps = _KEEP_LEFT if left.of_events else _KEEP_RIGHT
    return rows if kind in keeps else rows.mixed(f"a {kind} join, which keeps rows that belong to no partition")


def _sides(kind: str, left: Rows, right: Rows) -> Rows:
    if kind.startswith("Left") and kind != "LeftOuter":
        return left
    columns = None if left.columns is None or right.columns is None else left.columns + right.columns
    both = Rows(columns, of_events=left.of_events or right.of_events)
    match kind:
        case "Inner" | "Cross":
            return replace(both, own=left.own | right.own, maybe=left.maybe | right.maybe)
        case "LeftOuter":
            return replace(both, own=left.own, maybe=left.maybe | right.own | right.maybe)
        case "RightOuter":
            return replace(both, own=right.own, maybe=right.maybe | left.own | left.maybe)
        case "FullOuter":
            return replace(both, maybe=left.own | left.maybe | right.own | right.maybe)
    return replace(both, is_opaque=True).mixed(f"a {kind} join is not known to keep partitions apart")


def _equates_partitions(node: Node, left: Rows, right: Rows) -> bool:
    conditions = (each for whole in node.expressions("condition") for each in _conjuncts(whole))
    pairs = (each.children for each in conditions if each.kind in ("EqualTo", "EqualNullSafe"))
    return any((_is_own(a, left) and _is_own(b, right)) or (_is_own(b, left) and _is_own(a, right)) for a, b in pairs)


def _conjuncts(expression: Expression) -> Iterator[Expression]:
    if expression.kind == "And":
        for child in expression.children:
            yield from _conjuncts(child)
    else:
        yield expression


_STEPS: Mapping[str, Callable[[Node, Sequence[Rows]], Rows]] = {
    "Filter": _passed,
    "Repartition": _passed,
    "RepartitionByExpression": _passed,
    "RebalancePartitions": _passed,
    "WindowGroupLimit": _windowed,
    "Window": _windowed,
    "Project": _projected,
    "Aggregate": _aggregated,
    "Expand": _expanded,
    "Generate": _generated,
    "Union": _united,
    "Join": _joined,
    "Sort": _sorted,
    "GlobalLimit": _limited,
    "LocalLimit": _limited,
    "Offset": _limited,
    "Tail": _limited,
    "ArrowEvalPython": _python,
    "BatchEvalPython": _python,
}


# The partition among expressions


def _named(expressions: Sequence[Expression], rows: Rows) -> Rows:
    own = frozenset(e.id for e in expressions if _is_own(e, rows))
    maybe = frozenset(e.id for e in expressions if _is_maybe(e, rows))
    return replace(rows, columns=_ids(expressions), own=own, maybe=maybe)


def _with_columns(rows: Rows, added: Sequence[Expression]) -> Rows:
    return rows if rows.columns is None else replace(rows, columns=rows.columns + _ids(added))


def _has_partition(keys: Sequence[Expression], rows: Rows) -> bool:
    return any(_is_own(key, rows) for key in keys)


def _is_own(expression: Expression, rows: Rows) -> bool:
    match expression.kind:
        case "AttributeReference":
            return expression.id in rows.own
        case "Alias":
            return _is_own(expression.children[0], rows)
        case "Coalesce":  # a full outer join has a row on at least one side
            return len(expression.children) > 1 and all(
                _is_own(e, rows) or _is_maybe(e, rows) for e in expression.children
            )
    return False


def _is_maybe(expression: Expression, rows: Rows) -> bool:
    if expression.kind == "Alias":
        return _is_maybe(expression.children[0], rows)
    return expression.kind == "AttributeReference" and expression.id in rows.maybe


def _ids(expressions: Iterable[Expression]) -> tuple[int, ...]:
    return tuple(e.id for e in expressions)


# Spark's JSON: nodes, and expressions within them, in pre-order, each with its number of children


def _node(rest: Iterator[Mapping[str, Any]]) -> Node:
    fields = next(rest)
    return Node(_kind_of(fields["class"]), fields, tuple(_node(rest) for _ in range(fields["num-children"])))


def _expression(flat: Sequence[Mapping[str, Any]]) -> Expression:
    """Without recursion: a chain of operators is as deep as it is long."""
    trees: list[Expression] = []
    for fields in reversed(flat):
        children = tuple(trees.pop() for _ in range(fields["num-children"]))
        trees.append(Expression(_kind_of(fields["class"]), fields, children))
    return trees[-1]


def _flat_expressions(value: object) -> Iterator[Sequence[Mapping[str, Any]]]:
    if not isinstance(value, list) or not value:
        return
    if isinstance(value[0], dict) and "num-children" in value[0]:
        yield value
        return
    for each in value:
        yield from _flat_expressions(each)


def _kind_of(name: object) -> str:
    """The last part of a class's name, or of what Spark writes for an object of a class."""
    if isinstance(name, dict):
        name = name.get("object") or name.get("product-class") or ""
    return str(name).rsplit(".", 1)[-1].rstrip("$")
