"""The optimized plan of a DataFrame, as pipeline.plan reads it. Handles objects of Spark's JVM, which have no types here."""

from __future__ import annotations

import json
from typing import Any

from pipeline.plan import PARTITION, Contract, read_contract


def contract_of(source: Any, output: Any) -> Contract:
    """source, output: the JVM's DataFrames of the events and of what a transform makes of them."""
    plan = _optimized(output)
    return read_contract(
        json.loads(plan.toJSON()),
        sources=_partitions_of(plan, _optimized(source).rdd().id()),
        output=next(column for name, column in _attributes(plan) if name == PARTITION),
        is_deterministic=plan.deterministic(),
    )


def _optimized(frame: Any) -> Any:
    return frame.queryExecution().optimizedPlan()


def _attributes(node: Any) -> list[tuple[str, int]]:
    output = node.output()
    return [(output.apply(i).name(), output.apply(i).exprId().id()) for i in range(output.size())]


def _partitions_of(plan: Any, rdd: int) -> frozenset[int]:
    """The ids of `partition` in every leaf that reads the events: one that reads them twice has two."""
    leaves = plan.collectLeaves()
    every = [leaves.apply(i) for i in range(leaves.size())]
    ours = [leaf for leaf in every if leaf.getClass().getSimpleName() == "LogicalRDD" and leaf.rdd().id() == rdd]
    return frozenset(column for leaf in ours for name, column in _attributes(leaf) if name == PARTITION)
