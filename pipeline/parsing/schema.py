"""The schema of a JSON body: scalars, arrays, maps and structs that can be parsed without loss. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from leasehold.pipeline.errors import TransformError
from leasehold.pipeline.event import EVENT_SCHEMA

_SQL_NAMES = {
    "string": "STRING",
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP_NTZ",
}


_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_ARROW = {
    "STRING": pa.string(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}


@dataclass(frozen=True, slots=True)
class Leaf:
    """A scalar. `name` is its SQL type; `precision` and `scale` are a DECIMAL's."""

    name: str
    precision: int | None = None
    scale: int | None = None

    @property
    def bits(self) -> int | None:
        """The size of a whole number; None for other types."""
        return _BITS.get(self.name)

    @property
    def is_number(self) -> bool:
        return self.bits is not None or self.precision is not None or self.name in ("FLOAT", "DOUBLE")


@dataclass(frozen=True, slots=True)
class Struct:
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Array:
    element: Type


@dataclass(frozen=True, slots=True)
class Map:
    value: Type


Type = Leaf | Struct | Array | Map


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: Type
    nullable: bool


def read_schema(schema: Mapping[str, object]) -> Struct:
    """From Spark's JSON form (`StructType.jsonValue()`). Raises TransformError for columns that cannot be parsed strictly."""
    struct = _struct(schema, "")
    _refuse_collisions(struct)
    return struct


def _refuse_collisions(struct: Struct) -> None:
    taken = {name.lower() for name in EVENT_SCHEMA.names}
    for field in struct.fields:
        if field.name.lower() in taken:
            which = "is a column that every event has" if field.name.lower() in EVENT_SCHEMA.names else "appears twice"
            raise TransformError(f"schema: column '{field.name}' {which}: rename it, or read it from `body` in the SQL")
        taken.add(field.name.lower())


def _struct(schema: Mapping[str, object], path: str) -> Struct:
    fields = schema.get("fields")
    if not isinstance(fields, Sequence) or not fields:
        raise TransformError(f"schema: {path.removesuffix('.') or 'it'} has no columns")
    return Struct(tuple(_field(field, path) for field in fields))


def _field(field: Mapping[str, object], path: str) -> Field:
    where = f"{path}{field['name']}"
    metadata = field.get("metadata") or {}
    if isinstance(metadata, Mapping) and metadata.keys() - {"comment"}:
        raise TransformError(
            f"schema: column '{where}': lengths, defaults and collations are not checked: leave them out"
        )
    return Field(str(field["name"]), _type(field["type"], where), bool(field["nullable"]))


def _type(type: object, path: str) -> Type:
    match type:
        case str() if type in _SQL_NAMES:
            return Leaf(_SQL_NAMES[type])
        case str() if decimal := re.fullmatch(r"decimal\((\d+),(\d+)\)", type):
            return Leaf(f"DECIMAL({decimal[1]},{decimal[2]})", int(decimal[1]), int(decimal[2]))
        case {"type": "struct", "fields": fields}:
            return _struct({"fields": fields}, f"{path}.")
        case {"type": "array", "elementType": element}:
            return Array(_type(element, f"{path}[]"))
        case {"type": "map", "keyType": "string", "valueType": value}:
            return Map(_type(value, f"{path}{{}}"))
    name = type if isinstance(type, str) else type.get("type") if isinstance(type, Mapping) else type
    raise TransformError(
        f"schema: column '{path}': {str(name).upper()} cannot be parsed strictly: declare it STRING and convert it in the SQL"
    )


def arrow_schema(struct: Struct) -> pa.Schema:
    """NOT NULL is kept only for the columns themselves: Spark does not take it from Arrow within a struct that may be null."""
    return pa.schema([pa.field(field.name, arrow_type(field.type), nullable=field.nullable) for field in struct.fields])


def arrow_type(type: Type) -> pa.DataType:
    match type:
        case Leaf(name, precision, scale):
            return _ARROW[name] if precision is None else pa.decimal128(precision, scale)
        case Array(element):
            return pa.list_(arrow_type(element))
        case Map(value):
            return pa.map_(pa.string(), arrow_type(value))
        case Struct(fields):
            return pa.struct([(field.name, arrow_type(field.type)) for field in fields])
