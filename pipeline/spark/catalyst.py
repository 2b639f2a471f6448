"""The plans of a DataFrame, and what is read off them. Handles objects of Spark's JVM, which have no types here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipeline.limits import JSON_LEVELS_MAX
from pipeline.nesting import parsed_json
from pipeline.spark.partition_contract import PARTITION, Contract, read_contract

_BY_REFERENCE = frozenset(
    (
        "Aggregate",
        "Filter",
        "Generate",
        "GlobalLimit",
        "Join",
        "LocalLimit",
        "Project",
        "Sort",
        "SubqueryAlias",
        "View",
        "Window",
    )
)
"""Nodes that take of what is below them what their expressions name, and hand the rest on under the same ids."""
_STATELESS = frozenset(
    (
        "CoalesceExec",
        "FilterExec",
        "GenerateExec",
        "HashAggregateExec",
        "InputAdapter",
        "ObjectHashAggregateExec",
        "ProjectExec",
        "SortAggregateExec",
        "SortExec",
        "UnionExec",
        "WholeStageCodegenExec",
        "WindowExec",
    )
)
"""Physical nodes that compute their output from their input whenever they are run."""


def contract_of(source: Any, output: Any) -> Contract:
    """source, output: the JVM's DataFrames of the events and of what a transform makes of them."""
    plan = _optimized(output)
    return read_contract(
        parsed_json(plan.toJSON(), JSON_LEVELS_MAX),
        sources=_partitions_of(plan, _rdd_of(_optimized(source))),
        output=next(column for name, column in _attributes(plan) if name == PARTITION),
        is_deterministic=plan.deterministic(),
    )


def columns_read(source: Any, output: Any) -> frozenset[str]:
    """The columns of the events that the output is made of, or more. source, output: as in `contract_of`.

    Read off the analyzed plan, where nothing is folded away yet that might count another day (`current_date()`).
    """
    plan = output.queryExecution().analyzed()
    read = {column for _, column in _attributes(plan)}
    for node in _nodes(plan):
        read.update(_ids(node.references()))
        if node.getClass().getSimpleName() not in _BY_REFERENCE:
            read.update(column for child in _each(node.children()) for _, column in _attributes(child))
    rdd = _rdd_of(source.queryExecution().analyzed())
    leaves = [node for node in _nodes(plan) if _rdd_of(node) == rdd]
    return frozenset(name for leaf in leaves for name, column in _attributes(leaf) if column in read)


def is_same(output: Any, other: Any) -> bool:
    """Whether two outputs of one query, over one source, are the same to Spark once all is folded that the moment decides."""
    is_alike = _optimized(output).sameResult(_optimized(other))
    return bool(is_alike) and bool(output.schema().equals(other.schema()))


def runs_again(source: Any, output: Any) -> bool:
    """Whether output, run again over other rows of source, is what a plan made anew would yield. source, output: as above.

    A plan may hold on to what it has computed: shuffles, broadcasts, subqueries. So only nodes are let through that are known
    not to.
    """
    rdd = _rdd_of(source.queryExecution().analyzed().collectLeaves().apply(0))
    return rdd is not None and all(_is_stateless(node, rdd) for node in _nodes(output.queryExecution().executedPlan()))


def _is_stateless(node: Any, rdd: int) -> bool:
    name = node.getClass().getSimpleName()
    return int(node.rdd().id()) == rdd if name == "RDDScanExec" else name in _STATELESS


def _nodes(plan: Any) -> Iterator[Any]:
    """Also those of subqueries."""
    yield plan
    for below in (*_each(plan.children()), *_each(plan.subqueries())):
        yield from _nodes(below)


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


def _ids(attributes: Any) -> list[int]:
    return [each.exprId().id() for each in _each(attributes.toSeq())]


def _rdd_of(node: Any) -> int | None:
    return int(node.rdd().id()) if node.getClass().getSimpleName() == "LogicalRDD" else None


def _optimized(frame: Any) -> Any:
    return frame.queryExecution().optimizedPlan()


def _attributes(node: Any) -> list[tuple[str, int]]:
    return [(each.name(), each.exprId().id()) for each in _each(node.output())]


def _partitions_of(plan: Any, rdd: int | None) -> frozenset[int]:
    """The ids of `partition` in every leaf that reads the events: one that reads them twice has two."""
    leaves = [leaf for leaf in _each(plan.collectLeaves()) if _rdd_of(leaf) == rdd]
    return frozenset(column for leaf in leaves for name, column in _attributes(leaf) if name == PARTITION)
