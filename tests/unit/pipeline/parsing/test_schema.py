"""Schemas of JSON bodies, in Spark's own JSON form: what can be parsed without loss, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.pipeline.errors import TransformError
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.parsing.schema import Array, Field, Leaf, Map, Struct, read_schema


def field(name: str, type: object, *, nullable: bool = True, **metadata: object) -> dict[str, Any]:
    return {"name": name, "type": type, "nullable": nullable, "metadata": metadata}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def test_scalars_arrays_maps_and_structs_are_read_with_their_nullability() -> None:
    array = {"type": "array", "elementType": struct(field("q", "integer")), "containsNull": True}
    rates = {"type": "map", "keyType": "string", "valueType": "decimal(10,2)", "valueContainsNull": True}
    found = read_schema(struct(field("a", "string", nullable=False), field("l", array), field("m", rates)))
    assert found == Struct(
        (
            Field("a", Leaf("STRING"), nullable=False),
            Field("l", Array(Struct((Field("q", Leaf("INT"), nullable=True),))), nullable=True),
            Field("m", Map(Leaf("DECIMAL(10,2)", 10, 2)), nullable=True),
        )
    )


@pytest.mark.parametrize("name", [*EVENT_SCHEMA.names, "KEY", "Partition"])
def test_a_column_that_every_event_has_is_refused(name: str) -> None:
    with pytest.raises(TransformError, match=f"column '{name}' is a column that every event has"):
        read_schema(struct(field(name, "string")))


def test_a_column_that_appears_twice_is_refused() -> None:
    with pytest.raises(TransformError, match="column 'A' appears twice"):
        read_schema(struct(field("a", "string"), field("A", "integer")))


@pytest.mark.parametrize(
    "type", ["binary", "variant", "interval day", "void", "varchar(3)", "decimal(5,-1)", "time(6)"]
)
def test_a_type_that_cannot_be_parsed_strictly_is_refused_by_name(type: str) -> None:
    nested = {"type": "array", "elementType": struct(field("b", type)), "containsNull": True}
    with pytest.raises(TransformError, match=r"column 'a\[\]\.b': .* cannot be parsed strictly"):
        read_schema(struct(field("a", nested)))


def test_a_map_is_keyed_by_strings() -> None:
    wrong = {"type": "map", "keyType": "integer", "valueType": "string", "valueContainsNull": True}
    with pytest.raises(TransformError, match="column 'a': MAP cannot be parsed strictly"):
        read_schema(struct(field("a", wrong)))


def test_what_spark_hides_in_metadata_is_refused_and_a_comment_is_not() -> None:
    with pytest.raises(TransformError, match="lengths, defaults and collations"):
        read_schema(struct(field("a", "string", __CHAR_VARCHAR_TYPE_STRING="varchar(3)")))
    read_schema(struct(field("a", "string", comment="the account")))


def test_a_schema_without_columns_is_refused() -> None:
    with pytest.raises(TransformError, match="has no columns"):
        read_schema(struct())
