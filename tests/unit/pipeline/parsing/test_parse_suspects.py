"""Bodies that do not fit, few among many: found by two readings of the batch, whatever is wrong with them."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.pipeline.parsing import parse, python_reader
from leasehold.pipeline.parsing.parse import EXACT_BODIES, SUSPECTS_SHARE, Misfit, suspects
from leasehold.pipeline.parsing.schema import Array, Field, Leaf, Struct

NAME = 'a "b".ü'
SCHEMA = Struct(
    (
        Field("n", Leaf("INT"), nullable=False),
        Field("amount", Leaf("DECIMAL(8,2)", 8, 2), nullable=True),
        Field("is", Leaf("BOOLEAN"), nullable=True),
        Field("on", Leaf("DATE"), nullable=True),
        Field("f", Leaf("DOUBLE"), nullable=True),
        Field("s", Leaf("STRING"), nullable=True),
        Field("all", Array(Leaf("INT")), nullable=True),
    )
)
GOOD = (
    '{"n": 1, "amount": 1.25, "is": true, "on": "2026-01-01", "f": 0.5, "s": "a", "all": [1]}',
    '{"n": -2, "amount": -3, "is": null, "f": 7}',
    '{"n" : 3 , "s" : "n", "all" : []}',
)
ODD = (
    *(
        "gibberish",
        "",
        "{}",
        '{"n": null}',
        '{"n": 1.5}',
        '{"n": "x"}',
        '{"n": 99999999999}',
        '{"n": 1, "amount": 1.239}',
    ),
    *('{"n": 1, "amount": "1.25"}', '{"n": 1, "is": 7}', '{"n": 1, "is": "true"}', '{"n": 1, "on": "then"}'),
    *(
        '{"n": 1, "f": "NaN"}',
        '{"n": 1, "f": 1e5}',
        '{"n": 1, "s": 5}',
        '{"n": 1, "all": {}}',
        '{"n": 1, "all": [1.5]}',
    ),
    *(
        '{"\\u006e": 5}',
        '{"n": 1e2}',
        '{"N": 1}',
        '{"n": 1, "n": 2}',
        '{"n": 1} ',
        '{"n": 1}\n{"n": 2}',
        '{"n": 1, "s": "\\ud800"}',
    ),
)
"""Some of them fit, though they are not written as one would."""


def column(bodies: list[str]) -> pa.BinaryArray:
    return pa.array([body.encode() for body in bodies], pa.binary())


@given(
    st.lists(st.sampled_from(GOOD), min_size=1, max_size=4 * EXACT_BODIES),
    st.lists(st.tuples(st.sampled_from(ODD), st.floats(0, 1)), max_size=6),
)
@settings(deadline=None)
def test_it_is_as_if_every_body_were_read_on_its_own(good: list[str], odd: list[tuple[str, float]]) -> None:
    bodies = list(good)
    for body, where in odd:
        bodies.insert(round(where * len(bodies)), body)
    misfits: list[Misfit] = []
    alone = python_reader.read_exactly(SCHEMA, column(bodies), misfits)
    found = parse.parse(SCHEMA, pa.chunked_array([column(bodies)]))
    assert found.columns.to_pylist() == alone.to_pylist()
    assert [(each.index, str(each)) for each in found.misfits] == [(each.index, str(each)) for each in misfits]


@given(st.lists(st.lists(st.sampled_from([*GOOD, *ODD]), max_size=8), max_size=8), st.integers(0, 4 * len(GOOD[0])))
@settings(deadline=None)
def test_in_whatever_chunks_bodies_come_it_is_as_if_they_came_in_one(chunks: list[list[str]], chunk_bytes: int) -> None:
    misfits: list[Misfit] = []
    alone = python_reader.read_exactly(SCHEMA, column([body for chunk in chunks for body in chunk]), misfits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parse, "CHUNK_BYTES", chunk_bytes)
        found = parse.parse(SCHEMA, pa.chunked_array([column(chunk) for chunk in chunks], pa.binary()))
    assert found.columns.to_pylist() == alone.to_pylist()
    assert [(each.index, str(each)) for each in found.misfits] == [(each.index, str(each)) for each in misfits]


def test_small_chunks_are_read_together_and_large_ones_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    fast = parse.read_fast
    monkeypatch.setattr(parse, "read_fast", lambda *given: (read.append(len(given[1])), fast(*given))[1])
    monkeypatch.setattr(parse, "CHUNK_BYTES", column([GOOD[0]] * 10).nbytes)
    sizes = [3, 3, 4, 1, 20, 5, 5]
    found = parse.parse(SCHEMA, pa.chunked_array([column([GOOD[0]] * size) for size in sizes]))
    assert found.columns.num_rows == sum(sizes)
    assert read == [10, 1, 20, 10]


@pytest.mark.parametrize(
    "odd", ["gibberish", '{"n": 1.5}', '{"n": 1, "amount": 1.239}', '{"m": 1}', '{"n": 1, "is": 7}']
)
def test_a_few_cost_two_readings(monkeypatch: pytest.MonkeyPatch, odd: str) -> None:
    read: list[int] = []
    fast = parse.read_fast
    monkeypatch.setattr(parse, "read_fast", lambda *given: (read.append(len(given[1])), fast(*given))[1])
    bodies = [odd if n % 1000 == 500 else GOOD[n % 3] for n in range(5_000)]
    found = parse.parse(SCHEMA, pa.chunked_array([column(bodies)]))
    assert [misfit.index for misfit in found.misfits] == [500, 1500, 2500, 3500, 4500]
    assert read == [5_000, 4_995]


def test_what_fits_though_it_was_suspected_keeps_its_place() -> None:
    bodies = [f'{{"n": {n}}}' for n in range(100)]
    bodies[40], bodies[41] = '{"\\u006e": 40}', '{"n": "forty-one"}'
    found = parse.parse(SCHEMA, pa.chunked_array([column(bodies)]))
    assert list(suspects(SCHEMA, column(bodies))) == [40, 41]
    assert found.columns["n"].to_pylist() == [n for n in range(100) if n != 41]
    assert [misfit.index for misfit in found.misfits] == [41]


def test_where_too_many_are_suspected_pieces_are_read_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    read_exactly = parse.read_exactly
    monkeypatch.setattr(parse, "read_exactly", lambda *given: (read.append(len(given[1])), read_exactly(*given))[1])
    monkeypatch.setattr(parse, "suspects", lambda schema, bodies: range(0, len(bodies), SUSPECTS_SHARE // 2))
    bodies = ['{"n": 1}'] * 1000
    bodies[990] = "gibberish"
    found = parse.parse(SCHEMA, pa.chunked_array([column(bodies)]))
    assert ([misfit.index for misfit in found.misfits], found.columns.num_rows) == ([990], 999)
    assert sum(read) <= EXACT_BODIES


def test_a_column_of_any_name_is_looked_for() -> None:
    schema = Struct((Field(NAME, Leaf("DECIMAL(8,2)", 8, 2), nullable=False),))
    bodies = column([f'{{"a \\"b\\".ü": {n}.5}}' for n in range(200)] + ['{"a \\"b\\".ü": 0.125}'])
    assert [misfit.index for misfit in parse.parse(schema, pa.chunked_array([bodies])).misfits] == [200]
    assert parse.parse(schema, pa.chunked_array([bodies])).columns[NAME][1].as_py() == Decimal("1.5")
