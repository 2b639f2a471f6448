"""The partition contract, read off what a Connect server shows of a plan. The texts are Spark 4.3's."""

from __future__ import annotations

import pytest

from leasehold.pipeline.spark.plan_text import read_text, read_why_again

COLUMNS = "[partition#1, sequence#2L, offset#3, enqueued_time#4, key#5, body#6, properties#7, operation#8]"
EVENTS = ["SubqueryAlias events", f"View (`events`, {COLUMNS})", f"LocalRelation <empty>, {COLUMNS}"]


def explained(*nodes: str) -> str:
    """nodes: above the events."""
    lines = [*nodes, *EVENTS]
    tree = [lines[0], *("   " * number + "+- " + line for number, line in enumerate(lines[1:]))]
    head = ["== Parsed Logical Plan ==", "'Project", "", "== Analyzed Logical Plan ==", "partition: string"]
    return "\n".join(
        [*head, *tree, "", "== Optimized Logical Plan ==", "LocalRelation <empty>", "", "== Physical Plan ==", ""]
    )


SHARED = {
    "columns": "Project [partition#1, key#5]",
    "renamed": "Project [partition#1 AS p#33, upper(key#5) AS k#34]",
    "JSON": "Project [partition#1, to_json(struct(key, key#5), Some(Etc/UTC)) AS body#38]",
    "cases": "Project [partition#1, CASE WHEN (key#5 = a) THEN 1 ELSE 0 END AS x#45, key#5 LIKE a% AS l#47]",
    "sums": "Aggregate [partition#1, key#5], [partition#1, key#5 AS account#18, sum(length(body#6)) AS n#20L]",
    "partition alone": "Aggregate [partition#1], [partition#1, count(1) AS n#54L]",
    "filtered": "Filter (isnotnull(key#5) AND NOT (operation#8 = delete))",
    "distinct": "Distinct",
}
REFUSED = {
    "grouped by another column": ("Aggregate [key#5], [key#5, count(1) AS n#27L]", "not grouped by `partition`"),
    "grouped by a name alone": ("Aggregate [key#5 AS partition#9], [key#5, 1 AS n#2]", "not grouped by `partition`"),
    "grouped within a call": (
        "Aggregate [concat(partition#1, key#5)], [max(partition#1) AS partition#9]",
        "not grouped by",
    ),
    "random": ("Project [partition#1, rand(638) AS r#64]", "function rand is not known"),
    "order of rows": ("Aggregate [partition#1], [partition#1, first(key#5, false) AS k#9]", "function first is not"),
    "limit": ("LocalLimit 5", "LocalLimit is not read"),
    "sort": ("Sort [partition#1 ASC NULLS FIRST], true", "Sort is not read"),
    "subquery": ("Project [partition#1, scalar-subquery#83 [] AS m#84L]", "subqueries are not read"),
    "no partition": ("Project [key#5]", "`partition` cannot be followed"),
    "another partition": ("Project [key#5 AS partition#9]", "`partition` cannot be followed"),
    "brackets": ("Project [partition#1, (key#5] AS k#9", "plan is not read"),
}
WINDOW = (
    "Window [row_number() windowspecdefinition({0}, sequence#2L ASC NULLS FIRST, specifiedwindowframe(RowFrame,"
    " unboundedpreceding$(), currentrow$())) AS r#99], [{0}], [sequence#2L ASC NULLS FIRST]"
)


@pytest.mark.parametrize("node", SHARED.values(), ids=SHARED)
def test_batches_share_jobs_of_a_plan_that_keeps_partitions_apart(node: str) -> None:
    contract = read_text("SELECT partition, 'a%' FROM events", explained(node))
    assert (contract.keeps_partition, contract.why_not) == (True, None)


@pytest.mark.parametrize(("node", "why"), REFUSED.values(), ids=REFUSED)
def test_what_may_mix_partitions_is_refused(node: str, why: str) -> None:
    contract = read_text("SELECT partition FROM events", explained(node))
    assert contract.keeps_partition is None
    assert contract.why_not is not None
    assert why in contract.why_not


def test_a_window_has_to_be_partitioned_by_the_partition() -> None:
    sql = "SELECT partition, row_number() OVER (PARTITION BY key ORDER BY sequence) AS r FROM events"
    assert read_text(sql, explained(WINDOW.format("partition#1"))).why_not is None
    assert "window is not partitioned" in (read_text(sql, explained(WINDOW.format("key#5"))).why_not or "")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT partition, count(*) FROM events GROUP BY partition, 'partition#1'",
        "SELECT partition, 'a] [b' FROM events",
        "SELECT partition, key AS `a, b` FROM events",
        "SELECT partition -- '\nFROM events",
        "SELECT partition, 'a\\u0023' FROM events",
        "SELECT partition, 'it''s' FROM events WHERE key = 'x",
    ],
)
def test_a_query_whose_texts_may_look_like_a_plan_is_refused(sql: str) -> None:
    contract = read_text(sql, explained("Project [partition#1, key#5]"))
    assert (contract.keeps_partition, contract.why_not is None) == (None, False)


def test_several_inputs_are_refused() -> None:
    plan = explained("Project [partition#1]").replace("+- SubqueryAlias", ":- SubqueryAlias")
    assert "several inputs" in (read_text("SELECT partition FROM events", plan).why_not or "")


def test_another_source_is_refused() -> None:
    plan = explained("Project [partition#1]").replace("LocalRelation <empty>,", "Relation default.t")
    assert "Relation is a source other than the events" in (read_text("SELECT partition FROM t", plan).why_not or "")


def test_a_plan_that_is_cut_off_is_refused() -> None:
    plan = explained("Project [partition#1, ... 20 more fields]")
    assert "not shown whole" in (read_text("SELECT partition FROM events", plan).why_not or "")
    assert "not shown whole" in (read_text("SELECT partition FROM events", "").why_not or "")


ONCE = [SHARED["columns"], SHARED["renamed"], SHARED["filtered"], "Project [partition#1, rand(638) AS r#64]"]
AGAIN = {
    SHARED["sums"]: "plan has Aggregate, which may shuffle rows",
    SHARED["distinct"]: "plan has Distinct, which may shuffle rows",
    WINDOW.format("partition#1"): "plan has Window, which may shuffle rows",
    "Sort [partition#1 ASC NULLS FIRST], true": "plan has Sort, which may shuffle rows",
    "RepartitionByExpression [key#5]": "plan has RepartitionByExpression, which may shuffle rows",
    "Filter key#5 IN (list#9 [])": "subqueries are not read",
    "(": "several inputs",
}


@pytest.mark.parametrize("node", ONCE)
def test_a_plan_of_row_by_row_nodes_reads_events_once(node: str) -> None:
    assert read_why_again("SELECT partition FROM events", explained(node)) is None


@pytest.mark.parametrize(("node", "why"), AGAIN.items())
def test_any_other_plan_may_read_events_again(node: str, why: str) -> None:
    found = read_why_again("SELECT partition FROM events", explained(node)) or ""
    assert found.startswith("over Spark Connect, ")
    assert why in found


def test_a_plan_whose_text_is_not_certain_may_read_events_again() -> None:
    plan = explained(SHARED["columns"])
    assert "queries with literals" in (read_why_again("SELECT partition, 'a] [b' FROM events", plan) or "")
    other = plan.replace("LocalRelation <empty>,", "Relation default.t")
    assert "a source other than the events" in (read_why_again("SELECT partition FROM t", other) or "")
