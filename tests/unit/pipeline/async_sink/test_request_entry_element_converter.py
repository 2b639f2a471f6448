"""Rows as the JSON that a destination gets: exact, on one line, and never what is no JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.pipeline.async_sink import json_row

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def entry(body: bytes) -> bytes:
    value = json_row("body")({"body": body}, "key").value
    assert isinstance(value, bytes)
    return value


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_body_keeps_its_digits_and_keys_whatever_line_it_is_on(end: bytes) -> None:
    body = b'{%s "amount": 12345678901234567.89,%s "v": 0.1000000000000000055511, "a": 1, "a": 2}' % (end, end)
    assert entry(body) == body.replace(b"\r", b" ").replace(b"\n", b" ")


@given(VALUES, st.sampled_from([None, 1, "\t"]))
def test_a_body_means_the_same_on_one_line(value: object, indent: int | str | None) -> None:
    found = entry(json.dumps(value, indent=indent, ensure_ascii=False).encode())
    assert b"\n" not in found
    assert json.loads(found) == value


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-32-le", "latin-1"])
def test_a_body_of_another_encoding_is_refused_and_breaks_no_neighbours_request(encoding: str) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        entry('{"a": "é"}'.encode(encoding))


@pytest.mark.parametrize("depth", [500, 501, 100_000])
def test_a_body_may_nest_as_deep_as_a_sink_reads_it_and_no_deeper(depth: int) -> None:
    body = b"[" * depth + b"]" * depth
    if depth == 500:
        assert entry(body) == body
        return
    with pytest.raises(ValueError, match="has a `body` that is nested more than 500 levels deep"):
        entry(body)
