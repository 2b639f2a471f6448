"""The names of columns, read from a schema's text without Spark."""

from __future__ import annotations

import pytest

from leasehold.pipeline.sql_text import columns_of


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ("word STRING NOT NULL", ("word",)),
        ("a INT, b DECIMAL(6,2), c: STRING", ("a", "b", "c")),
        ("`taken at` TIMESTAMP,\n  `a``b` INT", ("taken at", "a`b")),
        ("s STRUCT<x: INT, y: ARRAY<STRING>>, m MAP<STRING,INT> COMMENT 'a, b', z INT", ("s", "m", "z")),
        ("", ()),
        (" , ,a INT,", ("a",)),
        ("`open INT", ()),
    ],
)
def test_names_are_those_of_the_outermost_columns(schema: str, names: tuple[str, ...]) -> None:
    assert tuple(columns_of(schema)) == names


def test_only_an_outermost_column_is_itself_not_null() -> None:
    schema = (
        "a INT NOT NULL, s STRUCT<x: INT NOT NULL>, `not null` INT, c INT COMMENT 'NOT NULL', d DECIMAL(6,2) not  null"
    )
    assert columns_of(schema) == {"a": True, "s": False, "not null": False, "c": False, "d": True}
