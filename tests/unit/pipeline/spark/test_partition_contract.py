"""The partition contract, over plans in the form in which Spark writes them (tests/integration has Spark write them)."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.pipeline.spark.partition_contract import Contract, read_contract

CATALYST = "org.apache.spark.sql.catalyst"
Flat = list[dict[str, Any]]

PARTITION, KEY, SEQUENCE = 0, 1, 2
AGAIN = 10
"""The events' columns when they are read a second time."""


def expression(kind: str, *children: Flat, **fields: Any) -> Flat:
    head = {"class": f"{CATALYST}.expressions.{kind}", "num-children": len(children), **fields}
    return [head, *(each for child in children for each in child)]


def expr_id(id: int) -> dict[str, Any]:
    return {"product-class": f"{CATALYST}.expressions.ExprId", "id": id, "jvmId": "x"}


def column(id: int) -> Flat:
    return expression("AttributeReference", name=f"c{id}", exprId=expr_id(id))


def alias(child: Flat, id: int) -> Flat:
    return expression("Alias", child, child=0, name=f"c{id}", exprId=expr_id(id))


def literal(value: str | None) -> Flat:
    return expression("Literal", value=value, dataType="string")


def equal(a: Flat, b: Flat, kind: str = "EqualTo") -> Flat:
    return expression(kind, a, b, left=0, right=1)


def node(kind: str, *children: Flat, **fields: Any) -> Flat:
    head = {"class": f"{CATALYST}.plans.logical.{kind}", "num-children": len(children), **fields}
    return [head, *(each for child in children for each in child)]


def events(first: int = 0) -> Flat:
    return node("LogicalRDD", output=[column(first + i) for i in (PARTITION, KEY, SEQUENCE)], rdd=None)


def constants(*ids: int) -> Flat:
    return node("LocalRelation", output=[column(each) for each in ids], data=None)


def project(child: Flat, *expressions: Flat) -> Flat:
    return node("Project", child, projectList=list(expressions), child=0)


def aggregate(child: Flat, keys: list[Flat], *expressions: Flat) -> Flat:
    return node("Aggregate", child, groupingExpressions=keys, aggregateExpressions=list(expressions), child=0)


def window(child: Flat, keys: list[Flat], id: int) -> Flat:
    return node("Window", child, windowExpressions=[alias(literal("1"), id)], partitionSpec=keys, orderSpec=[], child=0)


def join(left: Flat, right: Flat, kind: str, condition: Flat | None) -> Flat:
    return node("Join", left, right, joinType={"object": f"{CATALYST}.plans.{kind}$"}, condition=condition, hint=None)


def contract(plan: Flat, output: int = PARTITION, *, is_deterministic: bool = True) -> Contract:
    sources = frozenset((PARTITION, AGAIN + PARTITION))
    return read_contract(plan, sources=sources, output=output, is_deterministic=is_deterministic)


SHARED = Contract(True, None)
LOST = Contract(False, None)
SAME_PARTITION = equal(column(PARTITION), column(AGAIN + PARTITION))
SAME_KEY = equal(column(KEY), column(AGAIN + KEY))


def test_events_as_they_are_share_jobs() -> None:
    assert contract(events()) == SHARED


def test_the_partition_is_followed_through_aliases() -> None:
    renamed = project(events(), alias(column(PARTITION), 20))
    assert contract(project(renamed, alias(column(20), 21)), output=21) == SHARED


def test_an_expression_over_the_partition_is_not_the_partition() -> None:
    assert contract(project(events(), alias(expression("Upper", column(PARTITION)), 20)), output=20) == LOST


def test_a_column_that_merely_bears_the_name_is_not_the_partition() -> None:
    assert contract(project(events(), alias(column(KEY), 20)), output=20) == LOST


def test_an_aggregate_keyed_by_partition_shares_jobs() -> None:
    assert contract(aggregate(events(), [column(PARTITION), column(KEY)], column(PARTITION))) == SHARED


def test_an_aggregate_that_is_not_keyed_by_partition_mixes_and_loses_it() -> None:
    found = contract(aggregate(events(), [column(KEY)], alias(expression("Max", column(PARTITION)), 20)), output=20)
    assert found.keeps_partition is False
    assert found.why_not == "an aggregate that is not grouped by `partition`"


@pytest.mark.parametrize("kind", ["First", "Last", "CollectList", "CollectSet"])
def test_an_aggregate_that_takes_rows_as_they_arrive_mixes(kind: str) -> None:
    taken = alias(expression("AggregateExpression", expression(kind, column(KEY), child=0), aggregateFunction=0), 20)
    found = contract(aggregate(events(), [column(PARTITION)], column(PARTITION), taken))
    assert found == Contract(True, f"an aggregate ({kind}) that depends on the order in which rows arrive")


def test_a_window_over_another_key_mixes_although_it_keeps_the_column() -> None:
    found = contract(window(events(), [column(KEY)], 20))
    assert found == Contract(True, "a window that is not partitioned by `partition`")


def test_a_window_over_partition_shares_jobs() -> None:
    assert contract(window(events(), [column(PARTITION), column(KEY)], 20)) == SHARED


def test_a_window_over_what_became_of_the_partition_mixes() -> None:
    """The column under a new name is followed; the old name, given to something else, is not."""
    swapped = project(events(), alias(column(KEY), 20), alias(column(PARTITION), 21))
    assert contract(window(swapped, [column(20)], 22), output=21).why_not is not None
    assert contract(window(swapped, [column(21)], 22), output=21) == SHARED


@pytest.mark.parametrize("kind", ["GlobalLimit", "LocalLimit", "Offset", "Tail"])
def test_a_limit_mixes(kind: str) -> None:
    assert contract(node(kind, events(), child=0)) == Contract(True, "a limit over all partitions")


def test_a_global_sort_mixes_and_a_local_one_does_not() -> None:
    assert contract(node("Sort", events(), **{"global": True, "child": 0})).why_not == "a sort over all partitions"
    assert contract(node("Sort", events(), **{"global": False, "child": 0})) == SHARED


@pytest.mark.parametrize("kind", ["Inner", "LeftOuter", "LeftSemi", "LeftAnti"])
@pytest.mark.parametrize("equality", ["EqualTo", "EqualNullSafe"])
def test_a_join_that_equates_partitions_shares_jobs(kind: str, equality: str) -> None:
    keyed = equal(column(AGAIN + PARTITION), column(PARTITION), equality)
    condition = expression("And", keyed, SAME_KEY, left=0, right=1)
    assert contract(join(events(), events(AGAIN), kind, condition)) == SHARED


def test_a_join_by_another_key_mixes() -> None:
    assert (
        contract(join(events(), events(AGAIN), "Inner", SAME_KEY)).why_not == "a join that does not equate `partition`"
    )


def test_a_cross_join_mixes() -> None:
    assert contract(join(events(), events(AGAIN), "Cross", None)).why_not is not None


def test_an_equality_that_may_be_passed_over_does_not_count() -> None:
    either = expression("Or", SAME_PARTITION, SAME_KEY, left=0, right=1)
    assert contract(join(events(), events(AGAIN), "Inner", either)).why_not is not None


def test_the_outer_side_of_a_join_does_not_keep_the_partition() -> None:
    """Where nothing matched it is null."""
    assert contract(join(events(), events(AGAIN), "LeftOuter", SAME_PARTITION), output=AGAIN + PARTITION) == LOST


def test_grouping_by_the_outer_side_of_a_join_mixes() -> None:
    joined = join(events(), events(AGAIN), "LeftOuter", SAME_PARTITION)
    found = contract(aggregate(joined, [column(AGAIN + PARTITION)], column(AGAIN + PARTITION)))
    assert found.why_not == "an aggregate that is not grouped by `partition`"


def test_a_full_join_using_partition_shares_jobs() -> None:
    joined = join(events(), events(AGAIN), "FullOuter", SAME_PARTITION)
    either = expression("Coalesce", column(PARTITION), column(AGAIN + PARTITION), children=[0, 1])
    assert contract(project(joined, alias(either, 20)), output=20) == SHARED


@pytest.mark.parametrize("kind", ["Inner", "LeftOuter", "LeftSemi", "LeftAnti"])
def test_a_join_with_constants_shares_jobs(kind: str) -> None:
    assert contract(join(events(), constants(30), kind, equal(column(KEY), column(30)))) == SHARED


@pytest.mark.parametrize("kind", ["RightOuter", "FullOuter"])
def test_a_join_that_keeps_constants_without_events_mixes(kind: str) -> None:
    assert contract(join(events(), constants(30), kind, equal(column(KEY), column(30)))).why_not is not None


def test_an_aggregate_over_constants_alone_mixes_nothing() -> None:
    rates = aggregate(constants(30, 31), [column(30)], column(30))
    assert contract(join(events(), rates, "Inner", equal(column(KEY), column(30)))) == SHARED


def test_another_source_than_the_events_mixes() -> None:
    other = node("LogicalRDD", output=[column(30)], rdd=None)
    assert contract(join(events(), other, "Inner", equal(column(KEY), column(30)))).why_not is not None


def test_a_union_keeps_the_partition_that_all_of_its_sides_keep() -> None:
    again = project(events(AGAIN), column(AGAIN + PARTITION), column(AGAIN + KEY))
    assert contract(node("Union", project(events(), column(PARTITION), column(KEY)), again, children=[0, 1])) == SHARED
    crossed = project(events(AGAIN), column(AGAIN + KEY), column(AGAIN + PARTITION))
    assert contract(node("Union", project(events(), column(PARTITION), column(KEY)), crossed, children=[0, 1])) == LOST


def expand(child: Flat, *projections: list[Flat]) -> Flat:
    return node("Expand", child, projections=list(projections), output=[column(20), column(21)], child=0)


def test_grouping_sets_that_all_hold_the_partition_share_jobs() -> None:
    sets = expand(events(), [column(PARTITION), column(KEY)], [column(PARTITION), literal(None)])
    assert contract(aggregate(sets, [column(20), column(21)], column(20)), output=20) == SHARED


def test_a_rollup_to_a_grand_total_loses_the_partition() -> None:
    sets = expand(events(), [column(PARTITION), column(KEY)], [literal(None), literal(None)])
    found = contract(aggregate(sets, [column(20), column(21)], column(20)), output=20)
    assert found.keeps_partition is False
    assert found.why_not is not None


@pytest.mark.parametrize(("eval_type", "is_shared"), [(100, True), (101, True), (200, False), (204, False)])
def test_python_functions_of_one_row_share_jobs_and_those_of_many_do_not(eval_type: int, is_shared: bool) -> None:
    called = node("ArrowEvalPython", events(), udfs=[], resultAttrs=[column(20)], child=0, evalType=eval_type)
    assert (contract(called).why_not is None) is is_shared


@pytest.mark.parametrize("kind", ["MapInArrow", "MapInPandas", "FlatMapGroupsInPandas", "Sample", "NoSuchNodeYet"])
def test_what_is_not_known_mixes_and_leaves_the_partition_to_the_output(kind: str) -> None:
    found = contract(project(node(kind, events(), child=0), column(20)), output=20)
    assert found == Contract(None, f"{kind} is not known to keep partitions apart")


@pytest.mark.parametrize("kind", ["ScalarSubquery", "Exists", "ListQuery"])
def test_a_subquery_mixes(kind: str) -> None:
    asked = project(events(), column(PARTITION), alias(expression(kind, plan=[events()]), 20))
    assert contract(asked).why_not == f"a subquery ({kind}) looks at all partitions at once"


def test_a_subquery_within_a_condition_mixes() -> None:
    condition = equal(column(SEQUENCE), expression("ScalarSubquery", plan=[events()]))
    assert contract(node("Filter", events(), condition=condition, child=0)).why_not is not None


def test_what_differs_from_run_to_run_mixes() -> None:
    assert contract(events(), is_deterministic=False).why_not is not None


def test_mixing_below_is_not_undone_above() -> None:
    mixed = window(events(), [column(KEY)], 20)
    assert contract(aggregate(mixed, [column(PARTITION)], column(PARTITION))).why_not is not None


def test_a_chain_of_operators_may_be_longer_than_pythons_stack() -> None:
    length = 5000
    chain = expression("Add", left=0, right=1, **{"num-children": 2}) * length + column(SEQUENCE) * (length + 1)
    assert contract(project(events(), column(PARTITION), alias(chain, 20))) == SHARED
