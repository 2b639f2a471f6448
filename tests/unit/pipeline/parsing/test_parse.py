"""The strict parse: a body becomes exactly what it says, or is refused with a reason; both readers agree."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.pipeline.parsing import python_reader as parse_exact
from leasehold.pipeline.parsing.arrow_reader import OPENERS_MAX, _hints, read_fast
from leasehold.pipeline.parsing.parse import EXACT_BODIES, Misfit
from leasehold.pipeline.parsing.parse import parse as parse_apart
from leasehold.pipeline.parsing.schema import Array, Field, Leaf, Map, Struct, Type, arrow_schema

AMOUNT = Leaf("DECIMAL(18,2)", 18, 2)


def parse(schema: Struct, bodies: pa.BinaryArray) -> pa.Table:
    """Of bodies that all fit; raises the first misfit."""
    parsed = parse_apart(schema, pa.chunked_array([bodies]))
    for misfit in parsed.misfits:
        raise misfit
    return parsed.columns


def read_exactly(schema: Struct, bodies: pa.BinaryArray) -> pa.Table:
    """As `parse`, body by body."""
    misfits: list[Misfit] = []
    table = parse_exact.read_exactly(schema, bodies, misfits)
    for misfit in misfits:
        raise misfit
    return table


def may(name: str, of: Type) -> Field:
    return Field(name, of, nullable=True)


SCALARS = Struct(
    (
        may("amount", AMOUNT),
        may("i", Leaf("INT")),
        may("l", Leaf("BIGINT")),
        may("b", Leaf("BOOLEAN")),
        may("d", Leaf("DATE")),
        may("t", Leaf("TIMESTAMP")),
        may("n", Leaf("TIMESTAMP_NTZ")),
        may("f", Leaf("DOUBLE")),
        may("g", Leaf("FLOAT")),
        may("s", Leaf("STRING")),
    )
)
MONEY = Leaf("DECIMAL(10,2)", 10, 2)
MUST = Field("q", Leaf("INT"), nullable=False)
NESTED = Struct(
    (
        may("o", Struct((Field("a", Leaf("INT"), nullable=False), may("d", MONEY), may("s", Leaf("STRING"))))),
        may("l", Array(MONEY)),
        may("m", Map(Leaf("INT"))),
        may("ls", Array(Struct((MUST, may("p", Leaf("DECIMAL(5,1)", 5, 1)), may("t", Array(Leaf("TIMESTAMP"))))))),
    )
)
NOON = datetime(2026, 1, 31, 10, tzinfo=UTC)

GOOD: dict[str, dict[str, Any]] = {
    '{"amount": 1.20}': {"amount": Decimal("1.20")},
    '{"amount": 1.2}': {"amount": Decimal("1.20")},
    '{"amount": "1.20"}': {"amount": Decimal("1.20")},
    '{"amount": "1.2000"}': {"amount": Decimal("1.20")},
    '{"amount": "-5.5"}': {"amount": Decimal("-5.50")},
    '{"amount": 5}': {"amount": Decimal("5.00")},
    '{"amount": 1.23e0}': {"amount": Decimal("1.23")},
    '{"amount": "+.5"}': {"amount": Decimal("0.50")},
    '{"amount": 1234567890123456.78}': {"amount": Decimal("1234567890123456.78")},
    '{"amount": null}': {},
    "{}": {},
    '  {"i": 7} ': {"i": 7},
    '{"i": 7.0}': {"i": 7},
    '{"i": 1e2}': {"i": 100},
    '{"i": "7", "unknown": [1.5, {"x": null}]}': {"i": 7},
    '{"l": 9223372036854775807}': {"l": 2**63 - 1},
    '{"b": true}': {"b": True},
    '{"b": "false"}': {"b": False},
    '{"d": "2026-01-31"}': {"d": date(2026, 1, 31)},
    '{"d": "0001-01-01"}': {"d": date(1, 1, 1)},
    '{"d": "9999-12-31"}': {"d": date(9999, 12, 31)},
    '{"t": "2026-01-31T10:00:00Z"}': {"t": NOON},
    '{"t": "2026-01-31 10:00"}': {"t": NOON},
    '{"t": "2026-01-31T15:30:00+0530"}': {"t": NOON},
    '{"t": "2026-01-31T10:00:00.123456Z"}': {"t": NOON.replace(microsecond=123456)},
    '{"t": "2026-01-31T10:00:00.123456000Z"}': {"t": NOON.replace(microsecond=123456)},
    '{"n": "2026-01-31T10:00:00"}': {"n": NOON.replace(tzinfo=None)},
    '{"f": 1.5}': {"f": 1.5},
    '{"f": 1e308}': {"f": 1e308},
    '{"f": "-2.5e3"}': {"f": -2500.0},
    '{"unknown": 1e400}': {},
    '{"unknown": "\\ud800"}': {},
    '{"s": "x\\ny"}': {"s": "x\ny"},
    '{"s": "1.20"}': {"s": "1.20"},
    '{"s": "{}"}': {"s": "{}"},
    '{"s": 5}': {"s": "5"},
    '{"s": true}': {"s": "true"},
    '{"s": 1.20}': {"s": "1.20"},
    '{"s": "\\ud83d\\ude00"}': {"s": "\U0001f600"},
}
BAD: dict[str | bytes, str] = {
    '{"amount": 1.239}': "column 'amount' does not fit DECIMAL(18,2): '1.239'",
    '{"amount": "1.239"}': "column 'amount' does not fit DECIMAL(18,2): '1.239'",
    '{"amount": 1.2300000000000000000001}': "column 'amount' does not fit DECIMAL(18,2): '1.2300000000000000000001'",
    '{"amount": 12345678901234567.8}': "column 'amount' does not fit DECIMAL(18,2): '12345678901234567.8'",
    '{"amount": 1e400}': "column 'amount' does not fit DECIMAL(18,2): '1e400'",
    f'{{"amount": {"1" * 40}}}': f"column 'amount' does not fit DECIMAL(18,2): '{'1' * 40}'",
    f'{{"amount": "{"1" * 40}"}}': f"column 'amount' does not fit DECIMAL(18,2): '{'1' * 40}'",
    '{"amount": "abc"}': "column 'amount' does not fit DECIMAL(18,2): 'abc'",
    '{"amount": "1,234"}': "column 'amount' does not fit DECIMAL(18,2): '1,234'",
    '{"amount": ""}': "column 'amount' does not fit DECIMAL(18,2): ''",
    '{"amount": true}': "column 'amount' does not fit DECIMAL(18,2): 'true'",
    '{"amount": {"x": 1}}': "column 'amount' does not fit DECIMAL(18,2): '{\"x\":1}'",
    '{"amount": 1e16}': "column 'amount' does not fit DECIMAL(18,2): '1e16'",
    '{"amount": 35e37}': "column 'amount' does not fit DECIMAL(18,2): '35e37'",
    '{"amount": "35e37"}': "column 'amount' does not fit DECIMAL(18,2): '35e37'",
    '{"amount": "35\\u006537"}': "column 'amount' does not fit DECIMAL(18,2): '35e37'",
    '{"l": "35e37"}': "column 'l' does not fit BIGINT: '35e37'",
    '{"i": 1.5}': "column 'i' does not fit INT: '1.5'",
    '{"i": 2147483648}': "column 'i' does not fit INT: '2147483648'",
    '{"i": true}': "column 'i' does not fit INT: 'true'",
    '{"l": 9223372036854775808}': "column 'l' does not fit BIGINT: '9223372036854775808'",
    '{"b": "yes"}': "column 'b' does not fit BOOLEAN: 'yes'",
    '{"b": 1}': "column 'b' does not fit BOOLEAN: '1'",
    '{"d": "2026-02-30"}': "column 'd' does not fit DATE: '2026-02-30'",
    '{"d": "2026-01-31T10:00:00"}': "column 'd' does not fit DATE: '2026-01-31T10:00:00'",
    '{"d": "0000-01-01"}': "column 'd' does not fit DATE: '0000-01-01'",
    '{"d": "a\\nb"}': "column 'd' does not fit DATE: 'a b'",
    '{"t": "T10:00"}': "column 't' does not fit TIMESTAMP: 'T10:00'",
    '{"t": 1700000000}': "column 't' does not fit TIMESTAMP: '1700000000'",
    '{"t": "2026-01-31T25:00:00Z"}': "column 't' does not fit TIMESTAMP: '2026-01-31T25:00:00Z'",
    '{"t": "2026-01-31T10:00:00.1234567Z"}': "column 't' does not fit TIMESTAMP: '2026-01-31T10:00:00.1234567Z'",
    '{"t": "9999-12-31T23:59:59-05:00"}': "column 't' does not fit TIMESTAMP: '9999-12-31T23:59:59-05:00'",
    '{"t": "0000-01-01T00:00:00Z"}': "column 't' does not fit TIMESTAMP: '0000-01-01T00:00:00Z'",
    '{"n": "2026-01-31T10:00:00Z"}': "column 'n' does not fit TIMESTAMP_NTZ: '2026-01-31T10:00:00Z'",
    '{"f": 1e400}': "column 'f' does not fit DOUBLE: '1e400'",
    '{"f": "NaN"}': "column 'f' does not fit DOUBLE: 'NaN'",
    f'{{"g": {"9" * 40}}}': f"column 'g' does not fit FLOAT: '{'9' * 40}'",
    f'{{"g": "{"9" * 40}"}}': f"column 'g' does not fit FLOAT: '{'9' * 40}'",
    '{"g": 1e39}': "column 'g' does not fit FLOAT: '1e39'",
    '{"s": {"a": 1}}': "column 's' does not fit STRING: '{\"a\":1}'",
    '{"s": "\\ud800"}': "column 's' has half a character",
    b"\xff{}": "the body is not UTF-8",
    "": "the body is not one JSON object: ''",
    "null": "the body is not one JSON object: 'null'",
    "5": "the body is not one JSON object: '5'",
    "[{}]": "the body is not one JSON object: '[{}]'",
    "{} x": "the body is not one JSON object: '{} x'",
    "{}{}": "the body is not one JSON object: '{}{}'",
    "{'i': 1}": "the body is not one JSON object: '{'i': 1}'",
    '{} {"i": 1}': "the body is not one JSON object: '{} {\"i\": 1}'",
    '{},"i":1,{}': "the body is not one JSON object: '{},\"i\":1,{}'",
    '{"unknown": NaN}': "the body is not one JSON object: '{\"unknown\": NaN}'",
    '{"unknown": -Infinity}': "the body is not one JSON object: '{\"unknown\": -Infinity}'",
    '{"i": 1, "i": 1}': "column 'i' appears more than once",
    '{"s": "x", "s": null}': "column 's' appears more than once",
    '{"i": 01}': "the body is not one JSON object: '{\"i\": 01}'",
    '{"l": 0x10}': "the body is not one JSON object: '{\"l\": 0x10}'",
    '{"l": "0x10"}': "column 'l' does not fit BIGINT: '0x10'",
    '{"l": " 1"}': "column 'l' does not fit BIGINT: ' 1'",
    '{"l": "\u0661"}': "column 'l' does not fit BIGINT: '\u0661'",
    '{"b": "TRUE"}': "column 'b' does not fit BOOLEAN: 'TRUE'",
    '{"s": "a\nb"}': 'the body is not one JSON object: \'{"s": "a b"}\'',
    "\ufeff{}": "the body is not one JSON object: '\ufeff{}'",
    '{"f": NaN}': "the body is not one JSON object: '{\"f\": NaN}'",
    "[" * 5000: "the body is nested more than 500 levels deep: '" + "[" * 80 + "'",
}
GOOD_NESTED: dict[str, dict[str, Any]] = {
    "{}": {},
    '{"o": {"a": 1, "d": 1.25, "s": "x"}}': {"o": {"a": 1, "d": Decimal("1.25"), "s": "x"}},
    '{"o": null, "l": [1, "2.50", null, 3.1]}': {"l": [Decimal("1.00"), Decimal("2.50"), None, Decimal("3.10")]},
    '{"m": {"k": 1, "z": null}}': {"m": [("k", 1), ("z", None)]},
    '{"ls": [{"q": 1, "p": 1.5, "t": ["2026-01-31T10:00:00Z"]}, null]}': {
        "ls": [{"q": 1, "p": Decimal("1.5"), "t": [NOON]}, None]
    },
}
BAD_NESTED: dict[str | bytes, str] = {
    '{"o": {"d": 1}}': "column 'o.a' is missing or null",
    '{"o": {"a": 1, "d": 1.239}}': "column 'o.d' does not fit DECIMAL(10,2): '1.239'",
    '{"o": {"a": 1.5}}': "column 'o.a' does not fit INT: '1.5'",
    '{"o": 5}': "column 'o' does not fit STRUCT: '5'",
    '{"o": [1]}': "column 'o' does not fit STRUCT: '[1]'",
    '{"l": [1, 1.239]}': "column 'l[]' does not fit DECIMAL(10,2): '1.239'",
    '{"l": {"a": 1}}': "column 'l' does not fit ARRAY: '{\"a\":1}'",
    '{"m": {"k": 1.5}}': "column 'm{}' does not fit INT: '1.5'",
    '{"m": [1]}': "column 'm' does not fit MAP: '[1]'",
    '{"ls": [{"q": null}]}': "column 'ls[].q' is missing or null",
    '{"ls": [{"q": 1, "p": 1.55}]}': "column 'ls[].p' does not fit DECIMAL(5,1): '1.55'",
    '{"ls": [{"q": 1, "t": ["2026-01-31T10:00:00Z", "x"]}]}': "column 'ls[].t[]' does not fit TIMESTAMP: 'x'",
    '{"ls": [1]}': "column 'ls[]' does not fit STRUCT: '1'",
}


def column(bodies: Sequence[str | bytes | None]) -> pa.BinaryArray:
    return pa.array([body.encode() if isinstance(body, str) else body for body in bodies], pa.binary())


def values(table: pa.Table) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()]


@pytest.mark.parametrize(("schema", "good"), [(SCALARS, GOOD), (NESTED, GOOD_NESTED)], ids=["scalars", "nested"])
def test_what_fits_becomes_exactly_what_it_says(schema: Struct, good: dict[str, dict[str, Any]]) -> None:
    assert values(parse(schema, column(list(good)))) == list(good.values())
    for body, expected in good.items():
        assert values(parse(schema, column([body]))) == [expected], body


@pytest.mark.parametrize(
    ("schema", "body", "reason"),
    [(SCALARS, *each) for each in BAD.items()] + [(NESTED, *each) for each in BAD_NESTED.items()],
    ids=lambda value: repr(value)[:60] if isinstance(value, str | bytes) else "",
)
def test_what_does_not_fit_is_refused_with_column_and_value(schema: Struct, body: str | bytes, reason: str) -> None:
    for before, after in (([], []), (["{}"], ["{}"]), (["{}"] * 3, ["gibberish"])):
        with pytest.raises(Misfit) as caught:
            parse(schema, column([*before, body, *after]))
        assert str(caught.value).startswith(reason)
        assert caught.value.index == len(before)


@pytest.mark.parametrize("body", [None, "{}", '{"q": null}'])
def test_a_missing_field_does_not_fit_only_where_it_must_not_be_null(body: str | None) -> None:
    loose, strict = Struct((may("q", Leaf("INT")),)), Struct((MUST,))
    assert parse(loose, column([body])).to_pylist() == [{"q": None}]
    with pytest.raises(Misfit, match="the body is null" if body is None else "column 'q' is missing or null"):
        parse(strict, column([body]))


def test_no_bodies_are_no_rows() -> None:
    assert parse(NESTED, column([])).schema == arrow_schema(NESTED)


# Both readers

PLAIN = Struct(
    (
        Field("account", Leaf("STRING"), nullable=False),
        Field("amount", AMOUNT, nullable=False),
        may("count", Leaf("SMALLINT")),
        may("rate", Leaf("DOUBLE")),
        may("valid", Leaf("BOOLEAN")),
        may("on", Leaf("DATE")),
        may("at", Leaf("TIMESTAMP")),
        may("local", Leaf("TIMESTAMP_NTZ")),
        may("lines", Array(Struct((MUST, may("price", MONEY))))),
    )
)
AS_JSON = (
    '{"account":"Ada","amount":1.25,"count":7,"rate":0.5,"valid":true,"on":"2026-01-31","at":"2026-01-31T10:00:00Z",'
    '"local":"2026-01-31 10:00:00.5","lines":[{"q":1,"price":2.5}],"unknown":{"a":[1,2],"b":"Information on NaN and 12e4"}}'
)
AS_CSV = (
    '{"account":"Ada","amount":"1.25","count":"7","rate":"0.5","valid":"true","on":"2026-01-31","at":"2026-01-31 10:00",'
    '"local":"2026-01-31T10:00:00.500"}'
)


@pytest.mark.parametrize("body", [AS_JSON, AS_CSV])
def test_plain_batches_take_the_fast_way_to_the_same_values(body: str) -> None:
    bodies = column([body] * 100)
    fast = read_fast(PLAIN, bodies)
    assert fast is not None
    assert fast.equals(read_exactly(PLAIN, bodies))
    assert fast.schema == arrow_schema(PLAIN)


@pytest.mark.parametrize(
    "bodies",
    [
        ['{"q": 1}{"q": 2}', "  "],
        ['{"q": 1}{"q": 2}', '{"q": 1, "x": ', "}"],
        ['{"q": 1, "x": {', '"a": 1}}'],
        ['{"q": 1, "x": "', '"}'],
        ['{"q": 1}, {"q": 2}'],
        ['{"q": 1} // }'],
        ['{"q": 1}\n{"q": 2}', ""],
    ],
)
def test_bodies_cannot_make_up_for_each_other(bodies: list[str]) -> None:
    schema = Struct((MUST,))
    with pytest.raises(Misfit, match="the body is not one JSON object"):
        parse(schema, column(bodies))


def test_deep_nesting_is_refused_whatever_else_is_in_the_batch() -> None:
    schema = Struct((may("q", Leaf("INT")),))
    deep = f'{{"x": {"[" * 100_000}{"]" * 100_000}}}'
    for bodies in ([deep], ["{}", deep]):
        with pytest.raises(Misfit, match="nested more than 500 levels deep"):
            parse(schema, column(bodies))
    assert read_fast(schema, column([f'{{"x": {"[" * (OPENERS_MAX - 1)}{"]" * (OPENERS_MAX - 1)}}}'])) is not None


EXPONENTS = Struct(
    (
        may("a.b", AMOUNT),
        may("n", Leaf("BIGINT")),
        may("inner", Struct((may("price", MONEY),))),
        may("text", Leaf("STRING")),
    )
)


@pytest.mark.parametrize(
    "body",
    [
        '{"a.b": 1e2}',
        '{"a.b":-.5E2}',
        '{"a.b" \t: "1.5e+2"}',
        '{"n": 12e1}',
        '{"inner": {"price":1e1}}',
        r'{"\u0061.b": 1e2}',
        r'{"a.b": "\u0031"}',
        '{"unknown": NaN}',
        '{"unknown": [-Infinity]}',
    ],
)
def test_a_number_that_may_overflow_or_is_none_is_left_to_the_exact_reader(body: str) -> None:
    assert read_fast(EXPONENTS, column(['{"a.b": 1}', body])) is None


@pytest.mark.parametrize(("name", "key"), [("a/b", r"a\/b"), ('a"b', r"a\"b"), ("\u00e4", "\u00e4"), ("many", None)])
def test_an_exponent_is_found_however_the_column_is_called_and_written(name: str, key: str | None) -> None:
    schema = Struct((may(name, Array(AMOUNT) if key is None else AMOUNT),))
    body = '{"many": [%s]}' if key is None else f'{{"{key}": %s}}'
    assert read_fast(schema, column([body % "12"])) is not None
    assert read_fast(schema, column([body % "1e2"])) is None


def test_no_more_names_are_searched_for_than_is_faster_than_searching_once() -> None:
    wide = Struct(tuple(may(f"sensor_{n}", Leaf("BIGINT")) for n in range(100)))
    assert len(_hints(wide)) == 1
    assert read_fast(wide, column(['{"sensor_0": 1, "unknown": 1}'])) is not None
    assert read_fast(wide, column(['{"sensor_0": 1, "unknown": 1e2}'])) is None


@pytest.mark.parametrize(
    ("precision", "scale", "number"),
    [
        (38, 18, "665958458321690269031512"),
        (38, 2, "48586056195176709017778186419092545801"),
        (38, 38, "2147483648"),
        (37, 2, "-9999999999999999999999999999999999999"),
    ],
)
@pytest.mark.parametrize("written", ['{"n": %s}', '{"n": "%s"}', '{"many": [0, %s]}', '{"of": {"n": %s}}'])
def test_a_number_that_is_too_large_never_becomes_another_one(
    precision: int, scale: int, number: str, written: str
) -> None:
    exact = Leaf(f"DECIMAL({precision},{scale})", precision, scale)
    schema = Struct((may("n", exact), may("many", Array(exact)), may("of", Struct((may("n", exact),)))))
    body = written % number
    assert read_fast(schema, column([body])) is None
    with pytest.raises(Misfit):
        parse(schema, column([body]))
    largest = "9" * (precision - scale) + "." + "9" * scale if scale < precision else "0." + "9" * scale
    found = parse(schema, column([written % largest, written % f"-{largest}"]))
    assert found.equals(read_exactly(schema, column([written % largest, written % f"-{largest}"])))


@pytest.mark.parametrize(
    "body",
    [
        '{"a.b": 1, "unknown": [1.5e3, "2e5"]}',
        '{"a.b": 1, "text": "12e4"}',
        r'{"a.b": 1, "text": "\u00fc, \u0031 and Information on NaN"}',
    ],
)
def test_what_looks_like_a_number_elsewhere_does_not_cost_the_fast_way(body: str) -> None:
    fast = read_fast(EXPONENTS, column([body]))
    assert fast is not None
    assert fast.equals(read_exactly(EXPONENTS, column([body])))


def test_bodies_larger_than_a_block_are_read() -> None:
    schema = Struct((may("s", Leaf("STRING")),))
    bodies = [json.dumps({"s": letter * (3 << 20)}) for letter in "ab"]
    fast = read_fast(schema, column(bodies))
    assert fast is not None
    assert [value["s"][0] for value in fast.to_pylist()] == ["a", "b"]


NUMBERS = r"[-+]?[0-9]{0,20}[.]?[0-9]{0,4}([eE][-+]?[0-9]{0,2})?"
INSTANTS = r"[0-9]{4}-[01][0-9]-[0-3][0-9]([T ][0-9]{2}(:[0-9]{2}){0,2}([.][0-9]{1,8})?)?(Z|[-+][0-9]{2}:?[0-9]{0,2})?"
ODDITIES = [
    "true",
    "false",
    "nan",
    "inf",
    "Infinity",
    "-Inf",
    "0x1F",
    "1_000",
    "\u0661",
    "1e",
    ".",
    "-",
    "2026-01-01T23:59:60Z",
]
TEXTS = st.one_of(
    st.text(max_size=8),
    st.from_regex(NUMBERS, fullmatch=True),
    st.from_regex(INSTANTS, fullmatch=True),
    st.sampled_from(ODDITIES),
)
SCALAR_VALUES = st.one_of(
    TEXTS,
    st.integers(),
    st.integers(-200, 200),
    st.floats(),
    st.decimals(-1000, 1000, places=3).map(float),
    st.booleans(),
    st.none(),
)
VALUES = st.recursive(
    SCALAR_VALUES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["q", "price", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)
BODIES = st.dictionaries(st.sampled_from([*(field.name for field in PLAIN.fields), "unknown"]), VALUES, max_size=6).map(
    lambda found: json.dumps({"account": "", "amount": 0} | found)
)


GARBAGE = st.text(alphabet='{}[]",: 1a\\', max_size=6)


@settings(deadline=None)  # Arrow takes its time on the first call
@given(st.lists(st.one_of(BODIES, st.sampled_from([AS_JSON, AS_CSV]), GARBAGE), min_size=1, max_size=4))
def test_what_the_fast_reader_takes_the_exact_one_takes_to_the_same_values(bodies: list[str]) -> None:
    written = column(bodies)
    fast = read_fast(PLAIN, written)
    if fast is not None:
        assert fast.equals(read_exactly(PLAIN, written))


@pytest.mark.parametrize(
    "type", [Leaf("FLOAT"), *(field.type for field in PLAIN.fields[1:8])], ids=lambda leaf: leaf.name
)
@settings(deadline=None)
@given(value=SCALAR_VALUES)
def test_both_readers_agree_on_single_values(type: Leaf, value: object) -> None:
    schema = Struct((may("v", type),))
    written = column([json.dumps({"v": value})])
    fast = read_fast(schema, written)
    if fast is not None:
        assert fast.equals(read_exactly(schema, written))


# Some that do not fit


@given(st.lists(st.booleans(), max_size=3 * EXACT_BODIES), st.integers(1, 60))
@settings(deadline=None)
def test_bodies_that_do_not_fit_are_told_and_all_others_are_rows(fits: list[bool], times: int) -> None:
    fits = fits * times
    bodies = [f'{{"q": {n}}}' if fit else f'{{"q": {n}.5}}' for n, fit in enumerate(fits)]
    parsed = parse_apart(Struct((MUST,)), pa.chunked_array([column(bodies)]))
    assert parsed.columns["q"].to_pylist() == [n for n, fit in enumerate(fits) if fit]
    assert [misfit.index for misfit in parsed.misfits] == [n for n, fit in enumerate(fits) if not fit]
    assert {str(misfit)[:28] for misfit in parsed.misfits} <= {"column 'q' does not fit INT:"}


def test_a_few_bad_bodies_among_many_do_not_cost_the_others_the_fast_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    row = parse_exact._row
    monkeypatch.setattr(parse_exact, "_row", lambda *given: (read.append(1), row(*given))[1])
    bodies = ["gibberish" if n % 1000 == 500 else '{"q": 1}' for n in range(20_000)]
    parsed = parse_apart(Struct((MUST,)), pa.chunked_array([column(bodies)]))
    assert (len(parsed.misfits), parsed.columns.num_rows) == (20, 19_980)
    assert len(read) <= 20 * EXACT_BODIES
