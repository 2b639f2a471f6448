"""Which bodies of a batch probably do not fit, found for all at once. Pure.

A hint, and no more: whoever is suspected is read exactly, and all others are read as strictly as ever. It is there since looking
for a few bad bodies among many by reading ever smaller pieces takes several times as long as reading them.
"""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.parsing.schema import Field, Leaf, Struct, Type


def suspects(schema: Struct, bodies: pa.BinaryArray) -> np.ndarray:
    """Their places: of what is no object, lacks a column that must be there, or has one that is not written as its type is."""
    found = pc.invert(pc.and_(pc.starts_with(bodies, b"{"), pc.ends_with(bodies, b"}")))
    for field in schema.fields:
        found = pc.or_(found, _is_odd(field, bodies))
    return np.flatnonzero(pc.fill_null(found, fill_value=True).to_numpy(zero_copy_only=False))


def _is_odd(field: Field, bodies: pa.BinaryArray) -> pa.BooleanArray:
    key = re.escape(json.dumps(field.name, ensure_ascii=False)) + r"\s*:\s*"
    is_odd = pc.invert(pc.match_substring_regex(bodies, key + _plain(field.type)))
    if field.nullable:  # it may be missing, or null
        is_odd = pc.and_(is_odd, pc.match_substring_regex(bodies, key + r"[^\sn]"))
    return is_odd


def _plain(type: Type) -> str:
    """How a value of it is mostly written."""
    if not isinstance(type, Leaf):
        return r"[\[{]"
    if type.bits is not None:
        return r'"?-?[0-9]{1,19}"?\s*[,}]'
    if type.precision is not None and type.scale is not None:
        whole = max(1, type.precision - type.scale)
        return rf'"?-?[0-9]{{1,{whole}}}(\.[0-9]{{0,{type.scale}}})?"?\s*[,}}]'
    match type.name:
        case "FLOAT" | "DOUBLE":
            return r'"?-?[0-9.]+"?\s*[,}]'
        case "BOOLEAN":
            return r'"?(true|false)"?\s*[,}]'
        case "DATE" | "TIMESTAMP" | "TIMESTAMP_NTZ":
            return r'"[0-9]{4}-[0-9]{2}-[0-9]{2}'
    return '"'
