"""The strict parse: JSON bodies into typed columns, and which bodies do not fit and why. Pure.

A value fits if the column's type holds exactly the body's value. Numbers may be written as JSON numbers or as texts, as
CSV files have them. Unlike in Spark's own `from_json`, nothing is nulled, rounded or wrapped around.

There are two readers. `arrow_reader` reads some megabytes at once with Arrow's own JSON reader, and refuses them if they are not
clearly valid; `python_reader` then decides, body by body, and knows the reason. Whatever the first one takes, the second
one takes too, with the same values. So that the fast reader can take the others despite a few bad bodies, suspects are left out,
and a chunk with other flaws is read in ever smaller pieces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from leasehold.pipeline.parsing.arrow_reader import read_fast
from leasehold.pipeline.parsing.python_reader import Misfit, read_exactly
from leasehold.pipeline.parsing.schema import Field, Leaf, Struct, Type, arrow_schema

__all__ = ["Misfit", "Parsed", "parse"]

CHUNK_BYTES = 4 * 1024 * 1024
"""Target chunk size; a larger chunk stays whole. So the memory for reading, apart from the bodies, does not grow with a batch."""
PIECES = 256, 16
"""How many pieces a chunk that the fast reader does not take is cut into, and then each such piece."""
EXACT_BODIES = 32
"""This many or fewer are read one by one at once."""
SUSPECTS_SHARE = 20
"""At most one body in this many may be a suspect. With more, reading them one by one takes longer than reading pieces."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """columns: a row for each body that fits, in order. misfits: one for each of the others, with its place among all bodies."""

    columns: pa.Table
    misfits: Sequence[Misfit]


def parse(schema: Struct, bodies: pa.ChunkedArray) -> Parsed:
    """The bodies as columns of the schema."""
    columns = [arrow_schema(schema).empty_table()]
    misfits: list[Misfit] = []
    offset = 0
    for chunk in _chunks(bodies):
        parsed = _parsed(schema, chunk)
        columns.append(parsed.columns)
        misfits += [Misfit(offset + misfit.index, str(misfit)) for misfit in parsed.misfits]
        offset += len(chunk)
    return Parsed(pa.concat_tables(columns), misfits)


def _chunks(bodies: pa.ChunkedArray) -> Iterator[pa.BinaryArray]:
    """The chunks; small ones are joined, because each reading has a fixed cost."""
    some: list[pa.BinaryArray] = []
    size = 0
    for chunk in bodies.chunks:
        if some and size + chunk.nbytes > CHUNK_BYTES:
            yield _together(some)
            some, size = [], 0
        some.append(chunk)
        size += chunk.nbytes
    if some:
        yield _together(some)


def _together(chunks: Sequence[pa.BinaryArray]) -> pa.BinaryArray:
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)  # Arrow would copy a single one, too


def _parsed(schema: Struct, bodies: pa.BinaryArray) -> Parsed:
    fast = read_fast(schema, bodies)
    if fast is not None:
        return Parsed(fast, ())
    return _without_suspects(schema, bodies) or _in_pieces(schema, bodies)


def _without_suspects(schema: Struct, bodies: pa.BinaryArray) -> Parsed | None:
    """What fits if suspects are read apart; None if other bodies do not fit, or if there are no suspects or too many."""
    places = suspects(schema, bodies)
    if not 0 < len(places) <= max(EXACT_BODIES, len(bodies) // SUSPECTS_SHARE):
        return None
    others = np.delete(np.arange(len(bodies)), places)
    fast = read_fast(schema, bodies.take(pa.array(others)))
    if fast is None:
        return None
    found: list[Misfit] = []
    exact = read_exactly(schema, bodies.take(pa.array(places)), found)
    misfits = [Misfit(int(places[misfit.index]), str(misfit)) for misfit in found]
    if exact.num_rows == 0:
        return Parsed(fast, misfits)
    fitting = np.delete(places, [misfit.index for misfit in found])
    order = np.argsort(np.concatenate([others, fitting]))
    return Parsed(pa.concat_tables([fast, exact]).combine_chunks().take(pa.array(order)), misfits)


def _in_pieces(schema: Struct, bodies: pa.BinaryArray) -> Parsed:
    misfits: list[Misfit] = []
    pieces = list(_pieces(schema, bodies, 0, PIECES, misfits))
    return Parsed(pa.concat_tables([arrow_schema(schema).empty_table(), *pieces]), misfits)


def _pieces(
    schema: Struct, bodies: pa.BinaryArray, offset: int, cuts: Sequence[int], misfits: list[Misfit]
) -> Iterator[pa.Table]:
    """What fits, in order, of bodies that the fast reader does not take. offset: how many bodies precede them."""
    if not cuts or len(bodies) <= EXACT_BODIES:
        found: list[Misfit] = []
        yield read_exactly(schema, bodies, found)
        misfits += [Misfit(offset + misfit.index, str(misfit)) for misfit in found]
        return
    size = max(EXACT_BODIES, -(-len(bodies) // cuts[0]))
    for start in range(0, len(bodies), size):
        piece = bodies.slice(start, size)
        fast = read_fast(schema, piece)
        if fast is not None:
            yield fast
        else:
            yield from _pieces(schema, piece, offset + start, cuts[1:], misfits)


def suspects(schema: Struct, bodies: pa.BinaryArray) -> np.ndarray:
    """The places of the bodies that probably do not fit, found for all at once: not an object, without a required column, or
    with a value not written like its type.

    It is only a hint: suspects are read exactly, and all others as strictly as ever. Looking for a few bad bodies among many by
    reading ever smaller pieces takes several times as long as reading them all.
    """
    found = pc.invert(pc.and_(pc.starts_with(bodies, b"{"), pc.ends_with(bodies, b"}")))
    for field in schema.fields:
        found = pc.or_(found, _is_odd(field, bodies))
    return np.flatnonzero(pc.fill_null(found, fill_value=True).to_numpy(zero_copy_only=False))


def _is_odd(field: Field, bodies: pa.BinaryArray) -> pa.BooleanArray:
    key = re.escape(json.dumps(field.name, ensure_ascii=False)) + r"\s*:\s*"
    is_odd = pc.invert(pc.match_substring_regex(bodies, key + _usual_form(field.type)))
    if field.nullable:  # it may be missing, or null
        is_odd = pc.and_(is_odd, pc.match_substring_regex(bodies, key + r"[^\sn]"))
    return is_odd


def _usual_form(type: Type) -> str:
    """An expression for the usual form of a value of this type."""
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
