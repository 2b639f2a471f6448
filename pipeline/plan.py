"""Whether batches of several partitions may share one job: read off Spark's optimized plan. Pure.

A job may be shared when its result for a partition cannot depend on which other partitions are in it: every aggregate,
window, join and distinct is keyed by the input's `partition`, and nothing limits or sorts over all of it. Whether a column of
that name comes out does not tell: `row_number() OVER (PARTITION BY account)` keeps it and mixes partitions all the same. So
the column is followed by its id, through aliases. What is not known to keep partitions apart counts as mixing them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PARTITION = "partition"

_PASS = frozenset(
    (
        *("Filter", "SubqueryAlias", "View", "Generate", "Sort", "ResolvedHint", "BatchEvalPython"),
        *("Repartition", "RepartitionByExpression", "RebalancePartitions"),
    )
)
_LEAVES = frozenset(("LogicalRDD", "LocalRelation"))
_KEYED = {"Aggregate": "groupingExpressions", "Window": "partitionSpec", "Deduplicate": "keys"}
_BARRED = {
    "ScalarSubquery": "a subquery looks at all partitions at once",
    "Exists": "a subquery looks at all partitions at once",
    "InSubquery": "a subquery looks at all partitions at once",
    "ListQuery": "a subquery looks at all partitions at once",
    "Rand": "random numbers depend on where a row lies",
    "Randn": "random numbers depend on where a row lies",
    "Uuid": "random numbers depend on where a row lies",
    "Shuffle": "random numbers depend on where a row lies",
    "MonotonicallyIncreasingID": "its numbers depend on where a row lies",
    "SparkPartitionID": "its numbers depend on where a row lies",
}


@dataclass(frozen=True, slots=True)
class Expression:
    kind: str
    fields: Mapping[str, Any]
    children: tuple[Expression, ...]

    @property
    def id(self) -> object:
        return _id(self.fields.get("exprId"))

    def walk(self) -> Iterator[Expression]:
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class Node:
    kind: str
    fields: Mapping[str, Any]
    children: tuple[Node, ...]

    def expressions(self, name: str) -> tuple[Expression, ...]:
        """The expressions of a field: a list of them, or one."""
        value = self.fields.get(name)
        if not isinstance(value, list) or not value:
            return ()
        texts = value if isinstance(value[0], list) else [value]
        return tuple(_expression(iter(text)) for text in texts)

    def all_expressions(self) -> Iterator[Expression]:
        for name, value in self.fields.items():
            if isinstance(value, list) and value and _is_expression(value):
                for expression in self.expressions(name):
                    yield from expression.walk()


def mixing(plan: Sequence[Mapping[str, Any]]) -> str | None:
    """Why partitions may not share a job; None where they may. `plan`: `optimizedPlan().toJSON()`, decoded."""
    found = _followed(_node(iter(plan)))
    return found if isinstance(found, str) else None


def _followed(node: Node) -> frozenset[object] | str:
    """The ids under which the input's partition leaves this node, or why partitions do not stay apart in it."""
    ids: frozenset[object] = frozenset()
    sides = []
    for child in node.children:
        below = _followed(child)
        if isinstance(below, str):
            return below
        ids |= below
        sides.append(below)
    for expression in node.all_expressions():
        if expression.kind in _BARRED:
            return f"{expression.kind}: {_BARRED[expression.kind]}"
    return _through(node, ids, sides)


def _through(node: Node, ids: frozenset[object], sides: Sequence[frozenset[object]]) -> frozenset[object] | str:
    if node.kind in _LEAVES:
        return frozenset(e.id for e in node.expressions("output") if e.fields.get("name") == PARTITION)
    if node.kind == "Project":
        return _named(node.expressions("projectList"), ids)
    if node.kind in _KEYED:
        if not any(_is_partition(key, ids) for key in node.expressions(_KEYED[node.kind])):
            return f"{node.kind} is not keyed by {PARTITION}"
        return _named(node.expressions("aggregateExpressions"), ids) if node.kind == "Aggregate" else ids
    if node.kind == "Join":
        return _joined(node, sides)
    if node.kind == "Sort" and node.fields.get("global"):
        return "Sort orders all partitions together"
    if node.kind in _PASS:
        return ids
    return f"{node.kind} is not known to keep partitions apart"


def _joined(node: Node, sides: Sequence[frozenset[object]]) -> frozenset[object] | str:
    left, right = sides
    kind = str(_last_name(node.fields.get("joinType")))
    keyed = any(
        condition.kind in ("EqualTo", "EqualNullSafe")
        and any(_is_partition(a, left) and _is_partition(b, right) for a, b in _both_ways(condition))
        for whole in node.expressions("condition")
        for condition in _conjuncts(whole)
    )
    if not keyed:
        return f"Join is not keyed by {PARTITION}"
    if kind == "Inner":
        return left | right
    return left if kind in ("LeftOuter", "LeftSemi", "LeftAnti") else f"{kind} join may leave {PARTITION} empty"


def _conjuncts(expression: Expression) -> Iterator[Expression]:
    if expression.kind == "And":
        for child in expression.children:
            yield from _conjuncts(child)
    else:
        yield expression


def _both_ways(condition: Expression) -> tuple[tuple[Expression, Expression], tuple[Expression, Expression]]:
    a, b = condition.children
    return (a, b), (b, a)


def _named(expressions: Sequence[Expression], ids: frozenset[object]) -> frozenset[object]:
    """The ids of those that are the partition itself, renamed or not."""
    return frozenset(
        e.id
        for e in expressions
        if _is_partition(e, ids) or (e.kind == "Alias" and len(e.children) == 1 and _is_partition(e.children[0], ids))
    )


def _is_partition(expression: Expression, ids: frozenset[object]) -> bool:
    return expression.kind == "AttributeReference" and expression.id in ids


# Reading Spark's JSON: nodes and expressions in pre-order, each with its number of children


def _node(rest: Iterator[Mapping[str, Any]]) -> Node:
    fields = next(rest)
    return Node(_kind(fields), fields, tuple(_node(rest) for _ in range(fields["num-children"])))


def _expression(rest: Iterator[Mapping[str, Any]]) -> Expression:
    fields = next(rest)
    return Expression(_kind(fields), fields, tuple(_expression(rest) for _ in range(fields["num-children"])))


def _is_expression(value: Sequence[Any]) -> bool:
    first = value[0][0] if isinstance(value[0], list) and value[0] else value[0]
    return isinstance(first, dict) and "class" in first and "num-children" in first


def _kind(fields: Mapping[str, Any]) -> str:
    return str(fields["class"]).rsplit(".", 1)[-1].rstrip("$")


def _last_name(value: object) -> object:
    """Spark writes a case object as {"object": "...Inner$"}."""
    name = value.get("object", value.get("product-class", "")) if isinstance(value, dict) else value
    return str(name).rsplit(".", 1)[-1].rstrip("$")


def _id(value: object) -> object:
    return (value.get("id"), value.get("jvmId")) if isinstance(value, dict) else None
