"""The strict parse: a JSON body into typed columns, or a reason why not. Writes Spark SQL; pure.

Spark's own `from_json` nulls what does not fit and rounds decimals. Here every leaf is parsed as text first and cast only
where nothing is lost, so an event either becomes exactly what it says or is refused with the column and the value. Fractions
are parsed as VARIANT, which keeps up to 38 digits: parsed as STRING, Spark passes them through a double.

Four steps, each a list of texts for Spark (`events` -> `raw` -> `typed` -> where `accepted` -> `columns`):
- `raw` parses, once; `typed` casts, once. Both hold a nondeterministic call, so that the optimizer neither repeats nor
  prunes them.
- `accepted` fails the job with MISFIT on the first event that does not fit. It holds one too, or the user's own WHERE
  would be merged with it, and would drop unparsable events before they are seen.
- `columns` are the event's columns and, beside them, the schema's.
What is wrong with one event is asked in a query of its own, of `reason` over `typed`: the words would triple the generated
code of every job, beyond what the JVM compiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.event import EVENT_SCHEMA
from pipeline.schema import Array, Field, Leaf, Map, Struct, Type

MISFIT = "an event does not fit the schema"
VALUE_CHARS_MAX = 80
_PARSED = "__parsed"
_UNPARSED = "__unparsed"
_TEXT = "CAST(body AS STRING)"
_BARRIER = "monotonically_increasing_id() >= 0"
_OPTIONS = (
    f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{_UNPARSED}',"
    " 'allowNonNumericNumbers', 'false', 'allowSingleQuotes', 'false')"
)
_ZONE = "(Z|[-+][0-9]{2}:?[0-9]{2})?"
_INSTANT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6}0*)?)?"


@dataclass(frozen=True, slots=True)
class StrictParse:
    """The texts of the four steps."""

    raw: tuple[str, ...]
    typed: tuple[str, ...]
    accepted: str
    columns: tuple[str, ...]
    reason: str


def strict_parse(schema: Struct) -> StrictParse:
    events = tuple(map(_quoted, EVENT_SCHEMA.names))
    ddl = f"event {_raw_type(schema)}, {_UNPARSED} STRING"
    # One object within another: behind the end of a lone object, Spark would ignore anything.
    wrapped = f"""IF({_BARRIER}, concat('{{"event":', {_TEXT}, '}}'), NULL)"""
    terse, worded = Reasons(schema, words=False), Reasons(schema, words=True)
    fits = " AND ".join(f"({reason}) IS NULL" for reason in (terse.of_body(), *terse.of_columns()))
    return StrictParse(
        raw=(*events, f"from_json({wrapped}, {_literal(ddl)}, {_OPTIONS}) AS {_PARSED}"),
        typed=(*events, f"IF({_BARRIER}, {_PARSED}, NULL) AS {_PARSED}", *_casts(schema)),
        accepted=f"CASE WHEN {_BARRIER} AND {fits} THEN true ELSE raise_error('{MISFIT}') END",
        columns=(*events, *(f"{_column(i, f)} AS {_quoted(f.name)}" for i, f in enumerate(schema.fields))),
        reason=f"coalesce({', '.join((worded.of_body(), *worded.of_columns()))}) AS reason",
    )


# The parse: which type Spark reads into


def _is_text(type: Type) -> bool:
    """Whether a column of its own is read as STRING. Fractions are not, nor anything inside an array, map or struct."""
    return isinstance(type, Leaf) and not type.needs_exact_digits


def _raw_type(struct: Struct) -> str:
    fields = (f"{_quoted(f.name)}: {'STRING' if _is_text(f.type) else _nested_type(f.type)}" for f in struct.fields)
    return f"STRUCT<{', '.join(fields)}>"


def _nested_type(type: Type) -> str:
    match type:
        case Leaf():
            return "VARIANT"
        case Array(element):
            return f"ARRAY<{_nested_type(element)}>"
        case Map(value):
            return f"MAP<STRING, {_nested_type(value)}>"
        case Struct(fields):
            return f"STRUCT<{', '.join(f'{_quoted(f.name)}: {_nested_type(f.type)}' for f in fields)}>"


# The values


def _raw(field: Field) -> str:
    """A column as it was parsed: STRING or, where `_is_text` says no, of `_nested_type`."""
    return f"{_PARSED}.event.{_quoted(field.name)}"


def _text(index: int, field: Field) -> str:
    """A scalar column as text."""
    return _raw(field) if _is_text(field.type) else f"__text{index}"


def _column(index: int, field: Field) -> str:
    """A column as its type; null too where it does not fit."""
    return _raw(field) if field.type == Leaf("STRING") else f"__value{index}"


def _casts(struct: Struct) -> Iterator[str]:
    for index, field in enumerate(struct.fields):
        raw = _raw(field)
        if not isinstance(field.type, Leaf):
            yield f"{_value(field.type, raw, 0)} AS {_column(index, field)}"
            continue
        text = raw if _is_text(field.type) else f"CAST({raw} AS STRING)"
        if not _is_text(field.type):
            yield f"{text} AS {_text(index, field)}"
        if field.type.name != "STRING":
            yield f"try_cast({text} AS {field.type.name}) AS {_column(index, field)}"


def _value(type: Type, raw: str, depth: int) -> str:
    item = f"v{depth}"
    match type:
        case Leaf(name):
            return f"try_cast(CAST({raw} AS STRING) AS {name})"
        case Array(element):
            return f"transform({raw}, {item} -> {_value(element, item, depth + 1)})"
        case Map(value):
            return f"transform_values({raw}, (k{depth}, {item}) -> {_value(value, item, depth + 1)})"
        case Struct(fields):
            values = (f"{_literal(f.name)}, {_value(f.type, f'{raw}.{_quoted(f.name)}', depth)}" for f in fields)
            return f"IF({raw} IS NULL, NULL, named_struct({', '.join(values)}))"


# The reasons: SQL texts that are null where all is well


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why an event does not fit. Without words a reason is an empty text, which Spark reduces to plain conditions."""

    schema: Struct
    words: bool

    def of_body(self) -> str:
        null_body = "NULL" if all(f.nullable for f in self.schema.fields) else self._say("the body is null")
        half_escape = (
            f"(contains({_TEXT}, '\\\\ud') OR contains({_TEXT}, '\\\\uD')) AND try_parse_json({_TEXT}) IS NULL"
        )
        return (
            f"CASE WHEN body IS NULL THEN {null_body}"
            f" WHEN NOT is_valid_utf8({_TEXT}) THEN {self._say('the body is not UTF-8')}"
            f" WHEN {_PARSED}.event IS NULL THEN {self._say('the body is not one JSON object: ', _TEXT)}"
            f" WHEN {_PARSED}.{_UNPARSED} IS NOT NULL THEN {self._misfit()}"
            f" WHEN {half_escape} THEN {self._say('the body escapes half a character (a lone surrogate)')} END"
        )

    def of_columns(self) -> Iterator[str]:
        for index, field in enumerate(self.schema.fields):
            raw = _raw(field)
            if not isinstance(field.type, Leaf):
                yield self._field(field, raw, "", 0)
                continue
            text, fits = _text(index, field), _fits(field.type, _text(index, field), _column(index, field))
            if field.type.name == "STRING":
                fits = _is_faithful(field, text)
            elif not _is_text(field.type):
                fits = f"{fits} AND {_keeps_digits(field.type, raw)}"
            refusal = f"CASE WHEN {fits} THEN NULL ELSE {self._refusal(field.type, text, field.name, raw)} END"
            yield self._unless_null(field, field.name, text, refusal)

    def _unless_null(self, field: Field, where: str, value: str, reason: str) -> str:
        absent = "NULL" if field.nullable else self._say(f"column '{where}' is missing or null")
        return f"CASE WHEN {value} IS NULL THEN {absent} ELSE {reason} END"

    def _field(self, field: Field, raw: str, path: str, depth: int) -> str:
        where = f"{path}{field.name}"
        return self._unless_null(field, where, _nullness(field.type, raw), self._nested(field.type, raw, where, depth))

    def _nested(self, type: Type, raw: str, where: str, depth: int) -> str:
        """For a value inside an array, map or struct: its scalars are VARIANTs."""
        match type:
            case Leaf(name):
                text = f"CAST({raw} AS STRING)"
                fits = f"{_fits(type, text, f'try_cast({text} AS {name})')} AND {_keeps_digits(type, raw)}"
                return f"CASE WHEN {fits} THEN NULL ELSE {self._refusal(type, text, where, raw)} END"
            case Array(element):
                return self._first(raw, element, f"{where}[]", depth)
            case Map(value):
                return self._first(f"map_values({raw})", value, f"{where}{{}}", depth)
            case Struct(fields):
                reasons = (self._field(f, f"{raw}.{_quoted(f.name)}", f"{where}.", depth) for f in fields)
                return f"coalesce({', '.join(reasons)}, NULL)"

    def _first(self, items: str, type: Type, where: str, depth: int) -> str:
        item = f"v{depth}"
        reason = f"IF({_nullness(type, item)} IS NULL, NULL, {self._nested(type, item, where, depth + 1)})"
        return f"get(filter(transform({items}, {item} -> {reason}), reason -> reason IS NOT NULL), 0)"

    def _misfit(self) -> str:
        """Which array, map or struct got something else."""
        cases = "".join(
            f" WHEN {_kind_of(f)} NOT LIKE '{'ARRAY' if isinstance(f.type, Array) else 'OBJECT'}<%'"
            f" THEN {self._refusal(f.type, f'to_json({_again(f)})', f.name)}"
            for f in self.schema.fields
            if self.words and not isinstance(f.type, Leaf)
        )
        return f"CASE{cases} WHEN true THEN {self._say('the body does not fit the schema: ', _TEXT)} END"

    def _refusal(self, type: Type, text: str, where: str, raw: str = "") -> str:
        if not isinstance(type, Leaf):
            return self._say(f"column '{where}' does not fit {type.__class__.__name__.upper()}: ", text)
        refusal = self._say(f"column '{where}' does not fit {type.name}: ", text)
        if self.words and type.needs_exact_digits:
            inexact = "' (written with an exponent, or with more than 38 digits)'"
            return f"concat({refusal}, IF(schema_of_variant({raw}) = 'DOUBLE', {inexact}, ''))"
        return refusal

    def _say(self, words: str, value: str | None = None) -> str:
        if not self.words:
            return "''"
        return _literal(words) if value is None else f"concat({_literal(words)}, {_clipped(value)})"


def _nullness(type: Type, raw: str) -> str:
    """What is null where JSON says null: a VARIANT itself is not."""
    return f"CAST({raw} AS STRING)" if isinstance(type, Leaf) else raw


def _again(field: Field) -> str:
    """The field, parsed once more; `from_json` would throw the whole step out of Spark's generated code."""
    quote = "'" if '"' in field.name else '"'
    return f"try_variant_get(try_parse_json({_TEXT}), {_literal(f'$[{quote}{field.name}{quote}]')}, 'variant')"


def _kind_of(field: Field) -> str:
    return f"schema_of_variant({_again(field)})"


def _is_faithful(field: Field, text: str) -> str:
    """Whether a STRING column says what the body says.

    Spark writes a fraction or an object into a STRING by way of doubles: what could have been one is parsed again.
    """
    return (
        f"CASE WHEN (contains({text}, '.') AND {text} RLIKE '^-?[0-9]+[.][0-9]+(E-?[0-9]+)?$')"
        f""" OR left({text}, 1) IN ('{{', '[', '"') THEN {_kind_of(field)} = 'STRING' ELSE true END"""
    )


def _fits(leaf: Leaf, text: str, value: str) -> str:
    """Whether a text says exactly the value that Spark casts it to. May be null, for no.

    Shapes that are common are recognised without a regular expression.
    """
    match leaf.name:
        case "STRING":
            return "true"
        case "BOOLEAN":
            return f"{text} IN ('true', 'false')"
        case "FLOAT" | "DOUBLE":
            return f"abs({value}) < double('Infinity') AND {text} RLIKE '^[-+]?[0-9.]+([eE][-+]?[0-9]+)?$'"
        case "DATE":
            return f"CAST({value} AS STRING) = {text} AND {text} >= '0001'"
        case "TIMESTAMP":
            plain = (
                f"octet_length({text}) BETWEEN 20 AND 27 AND right({text}, 1) = 'Z' AND instr({text}, '.') IN (0, 20)"
                f" AND substr({text}, 5, 1) = '-' AND {text} >= '0001'"
            )
            return f"{value} IS NOT NULL AND ({plain} OR {_is_instant(leaf, text, value, _ZONE)})"
        case "TIMESTAMP_NTZ":
            return _is_instant(leaf, text, value, "")
    if leaf.scale is not None:
        digits = f"'^[-+]?[0-9]+([.][0-9]{{0,{leaf.scale}}}0*)?$'"
        return f"{value} IS NOT NULL AND (CAST({value} AS STRING) = {text} OR {text} RLIKE {digits})"
    return f"{value} IS NOT NULL"


def _is_instant(leaf: Leaf, text: str, value: str, zone: str) -> str:
    """ISO 8601 to the microsecond, within the years that Python knows."""
    first, last = (f"{leaf.name}'{at}'" for at in ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"))
    return f"({text} RLIKE '{_INSTANT}{zone})?$' AND {value} BETWEEN {first} AND {last})"


def _keeps_digits(leaf: Leaf, raw: str) -> str:
    """Whether a VARIANT is of a kind that says what the body says: a DOUBLE had an exponent or more than 38 digits."""
    kind = f"schema_of_variant({raw})"
    if leaf.name == "STRING":
        return f"{kind} IN ('STRING', 'BIGINT', 'BOOLEAN')"
    if leaf.name.endswith("INT"):
        return f"{kind} IN ('STRING', 'BIGINT')"
    return f"{kind} <> 'DOUBLE'" if leaf.needs_exact_digits else "true"


def _clipped(text: str) -> str:
    return rf"""concat('\'', left(translate({text}, '\n\r\t', '   '), {VALUE_CHARS_MAX}), '\'')"""


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
