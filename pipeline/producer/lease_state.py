"""What a lease keeps of its producer: it crosses the lease document as a compact JSON text, the sink state. Pure.

Each claim raises the owner level in the lease document, and begins a line of numbers of its own (docs/protocol.md, (b)).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace

from pipeline.errors import SinkRejected
from pipeline.limits import JSON_LEVELS_MAX
from pipeline.nesting import parsed_json
from pipeline.producer.numbers import GROUP_MAX, NOTHING_YET, NUMBER_MAX

LEVEL_MAX = 2**15 - 2
"""The last level that is ever claimed. The one above it is left for closing a used-up group: it outranks all its owners."""
STATE_BYTES_MAX = 1024
TARGET_LENGTH_MAX = 100

_BOUNDS = {
    "group": (0, GROUP_MAX),
    "series": (0, 2**31 - 1),
    "level": (0, LEVEL_MAX),
    "number": (NOTHING_YET, NUMBER_MAX),
    "tail": (-1, 2**63 - 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """The producer of one lease.

    group: the producer group last attached, None before the first time. series: how many groups were used up before.
    level: owner level of the present claim, 0 before the first. number: of the last event published, under the level
    that the group was last attached at, 0 or -1 for none.
    tail: the broker's sequence of the last event that is settled together with the lease's position, -1 for none; markers
    that are news lie behind it. target: the partition that is published to, None for the one of the same name.
    """

    group: int | None = None
    series: int = 0
    level: int = 0
    number: int = 0
    tail: int = -1
    target: str | None = None

    def claimed(self) -> ProducerState:
        """The next claim: one level up; a group whose levels are used up is followed by the next one."""
        if self.level < LEVEL_MAX:
            return replace(self, level=self.level + 1)
        return replace(self, series=self.series + 1, level=1)

    def encoded(self) -> str:
        kept = {name: value for name, value in asdict(self).items() if name != "target" or value is not None}
        return json.dumps(kept, separators=(",", ":"))


def claimed(state: str) -> str:
    """`Sink.claimed` of every sink that publishes idempotently. Raises SinkRejected."""
    return decoded(state).claimed().encoded()


def decoded(state: str) -> ProducerState:
    """The state that a lease document holds, "" being a new lease's. Anyone may have written it. Raises SinkRejected."""
    if not state:
        return ProducerState()
    if len(state) > STATE_BYTES_MAX:
        raise _refusal("is too long")
    try:
        values = parsed_json(state, JSON_LEVELS_MAX)
    except ValueError:
        raise _refusal("is not JSON") from None
    if not isinstance(values, dict) or set(values) | {"target"} != {field.name for field in fields(ProducerState)}:
        raise _refusal("does not hold exactly group, series, level, number and tail")
    for name, (least, most) in _BOUNDS.items():
        value = values[name]
        if value is None and name == "group":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise _refusal(f"has a {name} that is not a number from {least} to {most}")
    target = values.get("target")
    if target is not None and not (isinstance(target, str) and 0 < len(target) <= TARGET_LENGTH_MAX):
        raise _refusal("has a target that is no partition's name")
    return ProducerState(**values)


def group_of(pipeline: str, partition: str, generation: int, series: int) -> int:
    """The producer group of a lease: 63 bits that are the same in every process and version."""
    name = json.dumps([pipeline, partition, generation, series])
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def _refusal(why: str) -> SinkRejected:
    return SinkRejected(
        f"the sink state of the lease {why}: set the document's sinkState to an empty text; the destination knows its position"
    )
