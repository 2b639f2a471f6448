"""The names of targets, and what the server's plan says of them."""

from __future__ import annotations

import pytest

from leasehold.pipeline.connectors.postgres.target import relations_in, table_name


@pytest.mark.parametrize(("text", "parts"), [("t", ("t",)), ("s.t", ("s", "t"))])
def test_a_table_is_named_with_or_without_its_schema(text: str, parts: tuple[str, ...]) -> None:
    assert table_name(text) == parts


@pytest.mark.parametrize("text", ["", ".", "s.", ".t", "d.s.t"])
def test_another_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write `name` or `schema\.name`"):
        table_name(text)


def test_what_a_statement_writes_into_is_found_however_deep() -> None:
    inner = {"Node Type": "ModifyTable", "Schema": "a", "Relation Name": "t"}
    several = {"Node Type": "ModifyTable", "Target Tables": [{"Schema": "b", "Relation Name": "u"}], "Plans": [inner]}
    scan = {"Node Type": "Seq Scan", "Schema": "c", "Relation Name": "read"}
    assert relations_in([[{"Plan": {"Node Type": "Append", "Plans": [several, scan]}}]]) == [("a", "t"), ("b", "u")]


@pytest.mark.parametrize("schema", ["pg_temp", "pg_temp_3"])
def test_the_output_itself_is_no_destination(schema: str) -> None:
    assert relations_in([{"Node Type": "ModifyTable", "Schema": schema, "Relation Name": "batch"}]) == []
    assert relations_in(["Query rewrites to nothing"]) == []
