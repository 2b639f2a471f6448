"""Finding the event that a transform fails on: which range to try next, and how to name what was found. Pure.

A batch that fails alone is tried as ever shorter prefixes, so that what precedes the culprit is known to work and can still
be delivered. An event that fails only beside earlier ones (a sum that overflows) is reported as the shortest such range.
"""

from __future__ import annotations

from collections.abc import Generator

import pyarrow as pa

EVERY_INPUT = range(0)
"""Found where even an empty input fails: the transform is wrong, not an event."""


def isolate(events: int) -> Generator[range, bool, range | None]:
    """Yields ranges to try, of a batch of `events` events that has just failed, and is sent whether they failed.

    Returns the smallest range found, EVERY_INPUT, or None where the failure did not happen again.
    """
    if (yield EVERY_INPUT):
        return EVERY_INPUT
    works, fails = 0, events
    while fails - works > 1:
        middle = (works + fails) // 2
        if (yield range(middle)):
            fails = middle
        else:
            works = middle
    if (yield range(fails - 1, fails)):
        return range(fails - 1, fails)
    first, works = 0, fails - 1
    while works - first > 1:
        middle = (first + works) // 2
        if (yield range(middle, fails)):
            first = middle
        else:
            works = middle
    found = range(first, fails)
    return found if (yield found) else None


def place_of(events: pa.Table) -> str:
    """Where people find these events: partition, sequence and, where the feed says so, the record of the source."""
    first, last = events.slice(0, 1).to_pylist()[0], events.slice(events.num_rows - 1).to_pylist()[0]
    partition = f"partition '{first['partition']}'"
    if events.num_rows == 1:
        return f"{partition}, sequence {first['sequence']}{_source(first['properties'])}"
    return (
        f"{partition}, sequences {first['sequence']}{_source(first['properties'])} to {last['sequence']}"
        f"{_source(last['properties'])}, {events.num_rows} events that fail only together"
    )


def _source(properties: list[tuple[str, str]] | None) -> str:
    said = dict(properties or ())
    return f" (file {said['file']}, line {said['line']})" if {"file", "line"} <= said.keys() else ""
