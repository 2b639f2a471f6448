"""Samples: what is masked, cut, withheld and left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from pipeline.contract import event_table
from pipeline.event import EVENT_SCHEMA, Page
from pipeline.ranges import EventRange, RangedBatch
from pipeline.sink import Output
from pipeline.staging import StagedPart
from service.api import samples as module
from service.api.samples import Allowance, Limits, Mask, Sampler, spread, values_of

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
NOTHING = Mask(())


def row(**columns: Any) -> pa.Table:
    return pa.table({name: [value] for name, value in columns.items()})


def event(body: bytes | None, **columns: Any) -> pa.Table:
    values = {"partition": "7", "sequence": 5, "offset": "5", "enqueued_time": NOW, "body": body, **columns}
    return pa.Table.from_pylist([values], schema=EVENT_SCHEMA)


def body(shown: dict[str, Any]) -> Any:
    return json.loads(shown["body"])


def test_fields_of_json_are_masked_at_any_depth_whatever_their_case() -> None:
    sent = {"Account": "DE12", "card": {"number": 4711, "valid": True}, "lines": [{"account": 1}, 2], "ok": 1.5}
    shown = body(values_of(event(json.dumps(sent).encode()), Mask(["account", "num*"])))
    assert shown == {
        "Account": "***",
        "card": {"number": "***", "valid": True},
        "lines": [{"account": "***"}, 2],
        "ok": 1.5,
    }


def test_columns_properties_and_fields_of_structs_are_masked_by_their_names() -> None:
    shown = values_of(event(b"{}", key="DE12", properties=[("phone", "1"), ("kind", "a")]), Mask(["key", "phone"]))
    assert (shown["key"], shown["properties"]) == ("***", {"phone": "***", "kind": "a"})
    inner = pa.array([{"phone": "1", "many": [("phone", "2")]}], pa.struct([("phone", pa.string()), MANY]))
    assert values_of(pa.table({"person": inner}), Mask(["phone"])) == {
        "person": {"phone": "***", "many": {"phone": "***"}}
    }


MANY = ("many", pa.map_(pa.string(), pa.string()))


def test_json_within_json_and_within_a_text_column_is_masked() -> None:
    nested = json.dumps({"inner": json.dumps({"account": "DE12"})})
    assert "DE12" not in str(values_of(row(payload=nested, body=nested), Mask(["account"])))


@pytest.mark.parametrize("name", ["password", "API_KEY", "accessToken", "authorization"])
def test_secrets_are_masked_without_being_named(name: str) -> None:
    assert body(values_of(event(json.dumps({name: "s3cret"}).encode()), NOTHING)) == {name: "***"}
    assert values_of(event(None, properties=[(name, "s3cret")]), NOTHING)["properties"] == {name: "***"}


def test_secrets_in_texts_are_masked_before_a_text_is_cut() -> None:
    text = "x" * 1980 + " postgres://user:hunter2@host/db"
    assert "hunter" not in str(values_of(row(note=text), NOTHING))


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
    shown = values_of(event(content), Mask(["account"]))["body"]
    assert isinstance(shown, str)
    assert "withheld" in shown
    assert "DE12" not in shown
    assert "4711" not in shown


def test_without_names_to_mask_any_body_is_shown() -> None:
    assert values_of(event(b"a;5"), NOTHING)["body"] == "a;5"
    assert values_of(event(b"\xff\x00"), NOTHING)["body"] == "0xff00"
    assert values_of(event(None), NOTHING)["body"] is None


def test_what_is_long_is_cut_and_what_is_large_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    long = str(values_of(event(b"a" * 3000), NOTHING)["body"])
    assert long == "a" * 2000 + "... (3,000 characters)"
    monkeypatch.setattr(module, "_shown", lambda value, mask: pytest.fail("looked at"))
    assert "too large" in str(values_of(row(body=b"a" * 70_000), NOTHING)["body"])
    many = {f"c{n}": True for n in range(130)}
    monkeypatch.undo()
    assert values_of(row(**many), NOTHING)["..."] == "(30 more columns)"


def test_values_that_json_lacks_become_text() -> None:
    shown = values_of(row(a=float("nan"), b=NOW, c=pa.scalar(1).as_py(), d=b'{"e": 1e999}'), NOTHING)
    assert shown == {"a": "nan", "b": "2026-01-31T12:00:00+00:00", "c": 1, "d": '{"e":"inf"}'}


def test_rows_are_taken_evenly() -> None:
    assert list(spread(3, 10)) == [0, 1, 2]
    assert list(spread(10, 3)) == [0, 3, 6]
    assert list(spread(10, 0)) == list(spread(0, 5)) == []


def test_an_allowance_grows_with_time_and_not_beyond_a_second() -> None:
    allowance = Allowance(10, now=0.0)
    allowance.spend(10)
    assert allowance.left(0.0) == 0
    assert allowance.left(0.35) == 3
    assert allowance.left(100.0) == 10


class Case:
    """A sampler with a clock that stands still."""

    def __init__(self, limits: Limits | None = None, mask: Sequence[str] = ()) -> None:
        self.time = 0.0
        self.sampler = Sampler(limits or Limits(), Mask(mask), monotonic=lambda: self.time, now=lambda: NOW)

    def read(self, count: int) -> None:
        self.sampler.see_page(Page(event_table("7", range(count)), "99"))

    def deliver(self, count: int, staged: int = 0) -> None:
        parts = (StagedPart(epoch=1, start="1", name="x", rows=staged, bytes=1),) if staged else ()
        table = event_table("7", range(count))
        self.sampler.see_output(Output(table=table, start="1", to="9", events=count, staged=parts))

    def taken(self) -> list[tuple[str, dict[str, Any]]]:
        blocks = self.sampler.take().decode().split("\n\n")[:-1]
        lines = [block.split("\n") for block in blocks]
        return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]

    @property
    def left_out(self) -> tuple[int, int]:
        counts = self.sampler.left_out
        return counts.input, counts.output


def test_a_page_is_sampled_evenly_within_the_limit_and_the_rest_is_counted() -> None:
    case = Case(Limits(rows_per_s=4))
    case.read(100)
    case.deliver(2)
    taken = case.taken()
    assert [(name, data["values"]["sequence"]) for name, data in taken] == [
        *(("input", n) for n in (0, 25, 50, 75)),
        ("output", 0),
        ("output", 1),
    ]
    assert (taken[0][1]["to"], taken[4][1]["from"], taken[4][1]["to"]) == ("99", "1", "9")
    assert case.left_out == (96, 0)
    case.read(1)
    assert (case.taken(), case.left_out) == ([], (97, 0))
    case.time = 1.0
    case.read(1)
    assert len(case.taken()) == 1


def test_a_client_that_does_not_read_loses_samples_and_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUED_BYTES_MAX", 2000)
    case = Case(Limits(rows_per_s=100, rows_max=10_000))
    for _ in range(50):
        case.time += 1
        case.read(100)
    assert sum(len(text) for text in case.sampler._queue) < 2500
    assert case.left_out[0] + case.sampler.shown == 5000


def test_bytes_a_second_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BYTES_PER_S", 1000)
    case = Case(Limits(rows_per_s=100))
    case.read(100)
    assert 1 <= case.sampler.shown < 10


def test_only_the_wanted_side_is_shown_and_counted() -> None:
    case = Case(Limits(sides=("output",), rows_per_s=1))
    case.read(5)
    case.deliver(3)
    assert [name for name, _ in case.taken()] == ["output"]
    assert case.left_out == (0, 2)


def test_what_executors_have_read_or_staged_counts_as_left_out() -> None:
    case = Case()
    case.sampler.see_ranges(RangedBatch("7", 1, (EventRange(None, "30", 30),), 0.0))
    case.deliver(0, staged=20)
    assert (case.taken(), case.left_out) == ([], (30, 20))


def test_it_ends_with_its_last_row_or_with_the_lease() -> None:
    case = Case(Limits(rows_max=3))
    case.read(5)
    assert (case.sampler.why_ended, case.sampler.shown, case.left_out) == ("limit", 3, (2, 0))
    case.sampler.see_end()
    assert case.sampler.why_ended == "limit"
    other = Case()
    other.sampler.see_end()
    assert other.sampler.why_ended == "lease"
    other.sampler.take()
    assert other.sampler.changed.is_set(), "or its stream would wait"


def test_a_row_that_cannot_be_shown_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(row: pa.Table, mask: Mask) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(module, "values_of", fail)
    case = Case()
    case.read(1)
    assert case.taken()[0][1]["values"] == {"...": "(cannot be shown: TypeError)"}
