"""A pipeline's own session, as far as it needs no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkRuntimeError

from leasehold.pipeline.errors import TransformError
from leasehold.pipeline.ranges import RangeReads
from leasehold.pipeline.spark.connect import Connected
from leasehold.pipeline.spark.session import PipelineSession, range_reads_of
from leasehold.pipeline.transform import TransformSpec


@pytest.mark.parametrize(
    "error",
    [
        ValueError("Cannot invoke RPC on closed channel!"),
        PySparkRuntimeError(errorClass="NO_ACTIVE_SESSION", messageParameters={}),
        Py4JNetworkError("the JVM is gone"),
        OSError("away"),
    ],
)
def test_a_job_whose_session_is_closed_already_needs_no_cancellation(error: Exception) -> None:
    """The error then still names why the job ends."""
    asked: list[str] = []

    def interrupt(group: str) -> None:
        asked.append(group)
        raise error

    own: Any = object.__new__(PipelineSession)
    own.running = Connected(None, remote="sc://spark")  # type: ignore[arg-type]
    own.session = SimpleNamespace(interruptTag=interrupt)
    own.cancel("a-1")
    assert asked == ["a-1"]


class Node:
    """A node of an analyzed plan, with the methods of the JVM's."""

    def __init__(self, kind: str, *children: Node, subqueries: Sequence[Node] = (), **methods: int) -> None:
        self._kind, self._children, self._subqueries = kind, children, subqueries
        for name, value in methods.items():
            setattr(self, name, lambda value=value: value)

    def getClass(self) -> Any:  # noqa: N802 - the JVM's name
        return SimpleNamespace(getSimpleName=lambda: self._kind)

    def children(self) -> Any:
        return listed(self._children)

    def subqueries(self) -> Any:
        return listed(self._subqueries)

    def rdd(self) -> Any:
        return SimpleNamespace(id=lambda: 7)


def listed(nodes: Sequence[Node]) -> Any:
    return SimpleNamespace(size=lambda: len(nodes), apply=nodes.__getitem__)


def frame(plan: Node) -> Any:
    return SimpleNamespace(queryExecution=lambda: SimpleNamespace(analyzed=lambda: plan))


EVENTS = Node("SubqueryAlias", Node("View", Node("LogicalRDD")))


def project(child: Node, subqueries: Sequence[Node] = ()) -> Node:
    return Node("Project", child, subqueries=subqueries)


def named(count: int, kind: str = "Project") -> Node:
    """A common table expression over the events, which a query names so often."""
    names = [Node("CTERelationRef", cteId=3) for _ in range(count)]
    return Node("WithCTE", Node(kind, *names), Node("CTERelationDef", EVENTS, id=3))


SHUFFLES = "the transform's plan has {}, which may shuffle rows"
TWICE = "the transform reads `events` 2 times"
PLANS = {
    "events": (EVENTS, RangeReads()),
    "rows": (project(Node("Filter", Node("Generate", EVENTS))), RangeReads()),
    "named once": (named(1), RangeReads()),
    "named twice": (named(2), RangeReads(2, TWICE)),
    "a self-join": (Node("Join", EVENTS, project(EVENTS)), RangeReads(2, SHUFFLES.format("Join"))),
    "a self-join by name": (named(2, "Join"), RangeReads(2, SHUFFLES.format("Join"))),
    "NOT EXISTS": (Node("Filter", EVENTS, subqueries=[project(EVENTS)]), RangeReads(2, TWICE)),
    "UNION": (Node("Union", EVENTS, EVENTS, EVENTS), RangeReads(3, SHUFFLES.format("Union"))),
    "groups": (Node("Aggregate", EVENTS), RangeReads(1, SHUFFLES.format("Aggregate"))),
    "a window": (project(Node("Window", EVENTS)), RangeReads(1, SHUFFLES.format("Window"))),
    "an order": (Node("Sort", EVENTS), RangeReads(1, SHUFFLES.format("Sort"))),
    "DISTINCT": (Node("Distinct", EVENTS), RangeReads(1, SHUFFLES.format("Distinct"))),
    "a hint": (Node("Repartition", EVENTS), RangeReads(1, SHUFFLES.format("Repartition"))),
    "another source": (Node("Join", EVENTS, Node("LogicalRelation")), RangeReads(1, SHUFFLES.format("Join"))),
}


@pytest.mark.parametrize(("plan", "expected"), PLANS.values(), ids=PLANS)
def test_a_plan_shows_how_often_it_reads_events_and_why_it_may_read_them_again(
    plan: Node, expected: RangeReads
) -> None:
    assert range_reads_of(frame(Node("LogicalRDD")), frame(plan)) == expected


def test_chained_names_are_counted_as_often_as_all_of_them_are_read() -> None:
    depth = 60  # 2 to the power of it reads
    defined = [Node("CTERelationDef", EVENTS, id=0)]
    for number in range(1, depth + 1):
        both = Node("Join", *(Node("CTERelationRef", cteId=number - 1) for _ in range(2)))
        defined.append(Node("CTERelationDef", both, id=number))
    plan = Node("WithCTE", Node("CTERelationRef", cteId=depth), *defined)
    assert range_reads_of(frame(Node("LogicalRDD")), frame(plan)).times == 2**depth


def session(*, is_remote: bool = False, has_run_jobs: bool | None = False) -> Any:
    class Own(PipelineSession):
        def has_run_jobs(self) -> bool | None:
            return has_run_jobs

    own = object.__new__(Own)
    own.running = SimpleNamespace(is_remote=is_remote)  # type: ignore[assignment]
    return own


def test_over_connect_a_function_may_read_events_again_and_a_schema_alone_does_not() -> None:
    own = session(is_remote=True)
    function = own.range_reads(None, None, TransformSpec(name="p", function="m:f"))
    assert function.why_again == "over Spark Connect, what a function makes of the events is not known"
    assert own.range_reads(None, None, TransformSpec(name="p", schema="n INT")) == RangeReads()


@pytest.mark.parametrize(
    ("plan", "has_run_jobs", "why"),
    [
        (project(Node("MapInArrow", Node("Range"))), False, None),
        (Node("Aggregate", Node("Range")), False, SHUFFLES.format("Aggregate")),
        (Node("Filter", Node("Range"), subqueries=[Node("Range")]), False, TWICE),
        (Node("Range"), True, "function may have run Spark jobs"),
        (Node("Range"), None, "function may have run Spark jobs"),
    ],
)
def test_what_a_function_makes_of_each_batch_has_to_read_its_events_once(
    plan: Node, has_run_jobs: bool | None, why: str | None
) -> None:
    output: Any = SimpleNamespace(_jdf=frame(plan))
    own = session(has_run_jobs=has_run_jobs)
    if why is None:
        own.check_reads_once(output)
        return
    with pytest.raises(TransformError, match=rf"{why}.*: set `executors_read: false`"):
        own.check_reads_once(output)
