"""Which subjects a stream takes, and how positions of streams compare."""

from __future__ import annotations

import pytest

from leasehold.pipeline.connectors.nats.position import StreamPosition, compared, position_of
from leasehold.pipeline.connectors.nats.stream import covers
from leasehold.pipeline.errors import PositionLost


@pytest.mark.parametrize(
    ("pattern", "subject", "is_covered"),
    [
        ("a.0", "a.0", True),
        ("a.0", "a.1", False),
        ("a.*", "a.0", True),
        ("a.*", "a.0.b", False),
        ("a.*", "a", False),
        ("a.>", "a.0", True),
        ("a.>", "a.leasehold.x/y", True),
        ("a.>", "a", False),
        (">", "a.0", True),
        ("*.0", "a.0", True),
        ("a.*.c", "a.b.c", True),
        ("a.*.>", "a.b", False),
        ("b.>", "a.0", False),
    ],
)
def test_a_stream_takes_the_subjects_of_its_patterns(pattern: str, subject: str, is_covered: bool) -> None:
    assert covers(pattern, subject) is is_covered


def test_a_position_is_read_as_it_was_written() -> None:
    for position in (StreamPosition(41), StreamPosition(41, 1_795_979_121_123_456)):
        assert position_of(str(position)) == position
    assert position_of(None) == StreamPosition(0)


def test_positions_of_one_stream_compare_and_those_of_two_do_not() -> None:
    assert compared(StreamPosition(1, 7), StreamPosition(2, 7)) < 0
    assert compared(StreamPosition(3), StreamPosition(2, 7)) > 0
    assert compared(StreamPosition(0), StreamPosition(0, 7)) == 0
    with pytest.raises(PositionLost, match="positions of two streams"):
        compared(StreamPosition(1, 7), StreamPosition(1, 8))
