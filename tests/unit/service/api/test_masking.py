"""What a row of a tap shows: what is masked, cut and withheld."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.service.api import masking as module
from leasehold.service.api.masking import Mask, copied

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
NOTHING = Mask(())


def row(**columns: Any) -> pa.Table:
    return pa.table({name: [value] for name, value in columns.items()})


def event(body: bytes | None, **columns: Any) -> pa.Table:
    values = {"partition": "7", "sequence": 5, "offset": "5", "enqueued_time": NOW, "body": body, **columns}
    return pa.Table.from_pylist([values], schema=EVENT_SCHEMA)


def shown_of(table: pa.Table, mask: Mask) -> dict[str, Any]:
    return module.values_of(copied(table, 0, mask), mask)


def body(shown: dict[str, Any]) -> Any:
    return json.loads(shown["body"])


def test_fields_of_json_are_masked_at_any_depth_whatever_their_case() -> None:
    sent = {"Account": "DE12", "card": {"number": 4711, "valid": True}, "lines": [{"account": 1}, 2], "ok": 1.5}
    shown = body(shown_of(event(json.dumps(sent).encode()), Mask(["account", "num*"])))
    assert shown == {
        "Account": "***",
        "card": {"number": "***", "valid": True},
        "lines": [{"account": "***"}, 2],
        "ok": 1.5,
    }


def test_columns_properties_and_fields_of_structs_are_masked_by_their_names() -> None:
    shown = shown_of(event(b"{}", key="DE12", properties=[("phone", "1"), ("kind", "a")]), Mask(["key", "phone"]))
    assert (shown["key"], shown["properties"]) == ("***", {"phone": "***", "kind": "a"})
    inner = pa.array([{"phone": "1", "many": [("phone", "2")]}], pa.struct([("phone", pa.string()), MANY]))
    assert shown_of(pa.table({"person": inner}), Mask(["phone"])) == {
        "person": {"phone": "***", "many": {"phone": "***"}}
    }


MANY = ("many", pa.map_(pa.string(), pa.string()))


def test_json_within_json_and_within_a_text_column_is_masked() -> None:
    nested = json.dumps({"inner": json.dumps({"account": "DE12"})})
    assert "DE12" not in str(shown_of(row(payload=nested, body=nested), Mask(["account"])))


@pytest.mark.parametrize("name", ["password", "API_KEY", "accessToken", "authorization"])
def test_secrets_are_masked_without_being_named(name: str) -> None:
    assert body(shown_of(event(json.dumps({name: "s3cret"}).encode()), NOTHING)) == {name: "***"}
    assert shown_of(event(None, properties=[(name, "s3cret")]), NOTHING)["properties"] == {name: "***"}


def test_secrets_in_texts_are_masked_before_a_text_is_cut() -> None:
    text = "x" * 1980 + " postgres://user:hunter2@host/db"
    assert "hunter" not in str(shown_of(row(note=text), NOTHING))


def deep(texts: int) -> bytes:
    """JSON in a text in JSON, and so on."""
    text = json.dumps({"account": "DE12"})
    for _ in range(texts):
        text = json.dumps({"inner": text})
    return text.encode()


@pytest.mark.parametrize(
    "content", [b"DE12;5", b"4711", b'"DE12"', b'{"account": "DE12"', b"\xffDE12", b"[" * 5000, deep(5)]
)
def test_a_body_whose_fields_cannot_be_masked_is_withheld(content: bytes) -> None:
    shown = shown_of(event(content), Mask(["account"]))["body"]
    assert isinstance(shown, str)
    assert "withheld" in shown
    assert "DE12" not in shown
    assert "4711" not in shown


def test_without_names_to_mask_any_body_is_shown() -> None:
    assert shown_of(event(b"a;5"), NOTHING)["body"] == "a;5"
    assert shown_of(event(b"\xff\x00"), NOTHING)["body"] == "0xff00"
    assert shown_of(event(None), NOTHING)["body"] is None


def test_what_is_long_is_cut_and_what_is_large_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    long = str(shown_of(event(b"a" * 3000), NOTHING)["body"])
    assert long == "a" * 2000 + "... (3,000 characters)"
    monkeypatch.setattr(module, "_masked_value", lambda value, mask: pytest.fail("looked at"))
    assert "too large" in str(shown_of(row(body=b"a" * 70_000), NOTHING)["body"])
    many = {f"c{n}": True for n in range(130)}
    monkeypatch.undo()
    assert shown_of(row(**many), NOTHING)["..."] == "(30 more columns)"


def test_values_that_json_lacks_become_text() -> None:
    shown = shown_of(row(a=float("nan"), b=NOW, c=pa.scalar(1).as_py(), d=b'{"e": 1e999}'), NOTHING)
    assert shown == {"a": "nan", "b": "2026-01-31T12:00:00+00:00", "c": 1, "d": '{"e":"inf"}'}


def test_values_of_a_row_are_bounded_together() -> None:
    shown = shown_of(row(a="a" * 60_000, b="b" * 60_000, c="c" * 60_000, d="d"), NOTHING)
    assert [len(str(value)) > 1000 for value in shown.values()] == [True, True, False, False]
    assert (shown["c"], shown["d"]) == ("(60,004 bytes: too large to show)", "d")


def test_a_copy_has_one_row_and_neither_masked_nor_large_values() -> None:
    page = pa.table({"a": ["x" * 1000] * 1000, "account": ["DE12"] * 1000, "b": ["y" * 70_000] * 1000})
    copy = copied(page, 500, Mask(["account"]))
    assert 1000 < copy.content.size < 3000
    assert b"DE12" not in copy.content.to_pybytes()
    assert 1000 < copy.cost < 1200
    nothing = copied(page.select(["account"]), 5, Mask(["account"]))
    assert module.values_of(nothing, Mask(["account"])) == {"account": "***"}


INNER = json.dumps({"account": "DE12"})
ESCAPED = '{"acco\\u0075nt": "DE12"}'
TEXTS = {
    "JSON": INNER,
    "a JSON text of JSON": json.dumps(INNER),
    "a JSON text of a JSON text of JSON": json.dumps(json.dumps(INNER)),
    "JSON after a byte order mark": "\ufeff" + INNER,
    "JSON after a name": "payload=" + INNER,
    "JSON within JSON within JSON": json.dumps({"payload": json.dumps(INNER)}),
    "JSON after a name within JSON": json.dumps({"payload": "payload=" + INNER}),
    "two JSON documents": INNER + "\n" + INNER,
    "a name and a value": "account=DE12",
    "a name in another case": "ACCOUNT=DE12",
    "an escaped name": "payload=" + ESCAPED,
    "an escaped name, escaped again": "payload=" + json.dumps(ESCAPED),
    "a name in a URL": "https://host/?acco%75nt=DE12",
    "a name with zeros between": "\0".join("account=") + "DE12",
    "part of a document": INNER[:-1],
    "a name as a value beside it": json.dumps({"name": "account", "value": "DE12"}),
    "a list of names and values": json.dumps([["kind", 1], ["account", "DE12"]]),
    "properties in a list": json.dumps({"headers": [{"key": "account", "value": ["DE12"]}]}),
}


@pytest.mark.parametrize("form", TEXTS)
@pytest.mark.parametrize("pattern", ["account", "*COUN*", "acc?unt"])
def test_no_text_shows_a_masked_field(form: str, pattern: str) -> None:
    text = TEXTS[form]
    tables = [row(note=text), row(body=text), row(body=text.encode()), row(note=[{"a": text}]), row(note={"a": [text]})]
    for table in tables:
        assert "DE12" not in str(shown_of(table, Mask([pattern])))
        assert "DE12" in str(shown_of(table, NOTHING)), "or the test shows nothing"


def test_a_text_without_masked_names_is_shown() -> None:
    mask = Mask(["account"])
    assert shown_of(row(note="order=5 of {7}"), mask) == {"note": "order=5 of {7}"}
    assert shown_of(row(note="caf\\u00e9=1"), mask) == {"note": "caf\\u00e9=1"}
    assert shown_of(row(note="account"), mask) == {"note": "(7 bytes withheld: names a masked field)"}
    sent = json.dumps({"a": "accounts: DE12", "b": "{b", "c": '"'})
    assert json.loads(shown_of(row(body=sent), mask)["body"]) == {
        "a": "(14 bytes withheld: names a masked field)",
        "b": "{b",
        "c": '"',
    }


def test_secrets_in_json_within_a_json_text_are_masked() -> None:
    sent = json.dumps(json.dumps({"password": "hunter2"}))
    assert "hunter" not in str(shown_of(row(note=sent, body=sent), NOTHING))


@pytest.mark.parametrize("form", TEXTS)
@pytest.mark.parametrize("pattern", ["account", "*COUN*", "acc?unt"])
def test_no_name_of_a_field_shows_a_masked_field(form: str, pattern: str) -> None:
    name = TEXTS[form]
    sent = json.dumps({name: 1})
    many = pa.table({"note": pa.array([[(name, "1")]], pa.map_(pa.string(), pa.string()))})
    tables = [row(note=sent), row(body=sent.encode()), row(body=json.dumps([sent])), row(note={name: 1}), many]
    for table in tables:
        assert "DE12" not in str(shown_of(table, Mask([pattern])))
        assert "DE12" in str(shown_of(table, NOTHING)), "or the test shows nothing"


def test_names_of_bytes_are_masked_as_texts() -> None:
    fields = pa.array(
        [[(b"account", "DE12"), (b"account=DE12", "1"), (b"kind", "2")]], pa.map_(pa.binary(), pa.string())
    )
    assert shown_of(pa.table({"note": fields}), Mask(["account"])) == {
        "note": {"account": "***", "(12 bytes withheld: names a masked field)": "1", "kind": "2"}
    }


def test_a_name_of_letters_and_one_that_the_mask_gives_are_shown() -> None:
    sent = {"account": 1, "bank_account": 2, "x-key": 3, "account2": 4, "my-api-key": 5, "ref-1": 6}
    assert body(shown_of(event(json.dumps(sent).encode()), Mask(["account", "x-key"]))) == {
        "account": "***",
        "bank_account": 2,
        "x-key": "***",
        "(8 bytes withheld: names a masked field)": 4,
        "my-api-key": "***",
        "ref-1": 6,
    }


def test_a_value_under_a_withheld_name_is_masked_if_a_pattern_fits_the_name() -> None:
    shown = body(shown_of(event(b'{"account=DE12": 1}'), Mask(["*account*"])))
    assert shown == {"(12 bytes withheld: names a masked field)": "***"}


def test_fields_whose_names_are_withheld_alike_are_all_shown() -> None:
    shown = body(shown_of(event(b'{"account=1": 1, "account=2": 2, "account=3": 3}'), Mask(["account"])))
    withheld = "(9 bytes withheld: names a masked field)"
    assert shown == {withheld: 1, f"{withheld} (2)": 2, f"{withheld} (3)": 3}


def test_names_of_fields_are_cut_and_secrets_in_them_are_masked() -> None:
    shown = shown_of(row(note={"a" * 3000: 1, "postgres://user:hunter2@host/db": 2}), NOTHING)
    assert shown == {"note": {"a" * 2000 + "... (3,000 characters)": 1, "postgres://user:***@host/db": 2}}


def test_a_time_that_python_has_no_year_for_does_not_hide_the_other_columns() -> None:
    far = pa.array([253_402_300_800], pa.timestamp("s"))
    assert shown_of(pa.table({"far": far, "n": [1]}), NOTHING) == {"far": "(cannot be shown: OverflowError)", "n": 1}


@pytest.mark.parametrize(
    "sent",
    [
        {"op": "replace", "path": "/iban", "value": "DE1"},
        {"op": "replace", "path": "$.person['iban']", "value": "DE1"},
        {"columns": ["iban"], "rows": [["DE1"]]},
        {"columns": [{"name": "iban"}], "rows": [["DE1"]]},
        {"iban ": "DE1"},
        {"/iban": "DE1"},
    ],
)
def test_a_value_is_masked_beside_a_path_or_a_list_that_names_it(sent: dict[str, Any]) -> None:
    text = json.dumps(sent)
    for table in (row(note=text), row(body=text.encode()), row(note=sent)):
        assert "DE1" not in str(shown_of(table, Mask(["iban"])))
        assert "DE1" in str(shown_of(table, NOTHING)), "or the test shows nothing"
