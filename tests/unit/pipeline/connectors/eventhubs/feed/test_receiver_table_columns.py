"""Columns are what pyarrow would make of the same lists, and whoever makes them waits for no pandas."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S

from leasehold.pipeline.connectors.eventhubs.feed.receiver import maps, octets, repeated, texts, whole_numbers

TEXTS = st.lists(st.text() | st.none())
PAIRS = st.lists(st.lists(st.tuples(st.text(), st.text() | st.none())))


def agree(made: pa.Array, expected: pa.Array) -> None:
    made.validate(full=True)
    assert made.equals(expected)
    assert made.null_count == expected.null_count


@given(TEXTS, st.lists(st.binary() | st.none()), PAIRS, st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_columns_are_what_pyarrow_makes_of_lists(
    strings: list[str | None],
    binaries: list[bytes | None],
    pairs: list[list[tuple[str, str | None]]],
    numbers: list[int],
) -> None:
    agree(texts(strings), pa.array(strings, pa.string()))
    agree(octets(binaries), pa.array(binaries, pa.binary()))
    agree(maps(pairs), pa.array(pairs, pa.map_(pa.string(), pa.string())))
    agree(whole_numbers(numbers), pa.array(numbers, pa.int64()))


@given(st.text(), st.integers(0, 9))
def test_a_constant_column_is_its_value_so_many_times(text: str, count: int) -> None:
    agree(repeated(text, count), pa.array([text] * count, pa.string()))


def test_the_first_page_waits_for_no_pandas() -> None:
    program = """
import sys
from leasehold.pipeline.connectors.eventhubs.amqp.decode import ReceivedEvent
from leasehold.pipeline.connectors.eventhubs.feed.receiver import pages_of
events = [ReceivedEvent(0, b"0", 0, None, b"x"), ReceivedEvent(1, b"9", 0, "k", None, (("a", "b"),), "delete")]
[page] = pages_of("0", [events], events_max=9, bytes_max=9)
assert page.to == "1@9" and page.position_after(1) == "0@0"
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)
