"""Brackets that would exhaust a stack are counted where they are brackets, and nowhere else."""

from __future__ import annotations

import pytest

from leasehold.pipeline.sql_text import SCHEMA_LEVELS_MAX, SQL_LEVELS_MAX, schema_problem, sql_problem


def parentheses(levels: int) -> str:
    return "SELECT " + "(" * levels + "1" + ")" * levels


def structs(levels: int) -> str:
    return "a " + "STRUCT<a: " * levels + "INT" + ">" * levels


def test_what_nests_as_deep_as_it_may_is_fine_and_one_level_more_is_not() -> None:
    assert sql_problem(parentheses(SQL_LEVELS_MAX)) is None
    assert schema_problem(structs(SCHEMA_LEVELS_MAX)) is None
    assert sql_problem(parentheses(SQL_LEVELS_MAX + 1)) == (
        "must nest () at most 200 levels deep, and nests them 201 levels deep: write it flatter"
    )
    assert schema_problem(structs(SCHEMA_LEVELS_MAX + 1)) == (
        "must nest <> at most 32 levels deep, and nests them 33 levels deep: write it flatter"
    )


def test_what_stands_side_by_side_does_not_nest() -> None:
    assert sql_problem("SELECT " + ", ".join(["abs(1)"] * 1000)) is None


@pytest.mark.parametrize(
    "apart", ["'{}'", "'it\\'s {}'", "'it''s {}'", '"{}"', "`{}`", "1 -- {}\n", "1 /* {}\n */", "'{}", "/* {}", "'\\"]
)
def test_brackets_in_strings_names_and_comments_do_not_count(apart: str) -> None:
    assert sql_problem("SELECT " + apart.format("(" * 1000)) is None


def test_brackets_behind_a_string_count() -> None:
    assert sql_problem("SELECT 'a' || \"b\" -- '\n" + "(" * 1000) is not None


@pytest.mark.parametrize("text", ["/*", "'", "\\'", "--", "("])
def test_it_takes_time_linear_in_the_text(text: str) -> None:
    sql_problem("(" * 300 + text * 200_000)
