"""A producer's state as a text, for the producer that comes after it. Pure. The text is checked when it is read: anyone may have
written it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pipeline.limits import JSON_LEVELS_MAX
from pipeline.nesting import parsed_json
from pipeline.producer.numbers import Asked

PARTITIONS_MAX = 10_000
_NAMES = ("group", "level", "number")


def snapshot_of(partitions: Mapping[str, Asked]) -> str:
    """Of partitions whose group, level and number are known."""
    kept = {name: {field: getattr(asked, field) for field in _NAMES} for name, asked in sorted(partitions.items())}
    return json.dumps(kept, separators=(",", ":"))


def restored(snapshot: str) -> dict[str, Asked]:
    """Raises ValueError."""
    try:
        kept = parsed_json(snapshot, JSON_LEVELS_MAX)
    except ValueError:
        raise _refusal("is not JSON") from None
    if not isinstance(kept, dict) or len(kept) > PARTITIONS_MAX:
        raise _refusal("is not an object of partitions")
    return {name: _asked(name, values) for name, values in kept.items()}


def _asked(partition: str, values: object) -> Asked:
    if not isinstance(values, dict) or set(values) != set(_NAMES):
        raise _refusal(f"does not hold exactly group, level and number of partition '{partition[:50]}'")
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in values.values()):
        raise _refusal(f"holds something that is no number for partition '{partition[:50]}'")
    try:
        return Asked(**values)
    except ValueError as error:
        raise _refusal(f"holds for partition '{partition[:50]}': {error}") from None


def _refusal(why: str) -> ValueError:
    return ValueError(f"the snapshot {why}: give what IdempotentProducer.snapshot() returned, or none to start anew")
