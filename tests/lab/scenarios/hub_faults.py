"""What the wire between a role and its hubs may do: batches and their answers that get lost, levels and links that are stolen.

Each is ordered of the wire server, and strikes while the role is at work, which has to go on by itself to the same end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lab.scenarios.bank import Bank
from lab.scenarios.grounds import MADE, ROLES, behind
from lab.scenarios.hubs import FEED_GROUP, LEVEL_STOLEN, LINK_STOLEN, Hubs
from patience import Failed

OUT_OF_ORDER = "com.microsoft:out-of-order-sequence"


@dataclass(frozen=True, slots=True)
class Broken:
    """log: of which hub. order: of the wire server (tests/lab/servers/README.md)."""

    name: str
    role: str
    log: str
    order: Mapping[str, Any]


OF_PUBLISHING: Mapping[str, Mapping[str, Any]] = {
    "cut before stored": {"do": "cut", "after": 2, "times": 2},
    "cut after stored": {"do": "cut_after", "after": 2, "times": 2},
    "answer lost": {"do": "lose_ack", "after": 2, "times": 2},
    "detached after stored": {"do": "detach_after", "after": 2, "times": 2},
    "throttled": {"do": "throttle", "after": 2, "times": 6},
    "out of order": {"do": "refuse", "condition": OUT_OF_ORDER, "after": 2, "times": 1},
    "level stolen": {"do": "detach", "condition": LEVEL_STOLEN, "after": 2, "times": 2},
}
"""The first batch is published as ever, in two partitions."""
OF_READING: Mapping[str, Mapping[str, Any]] = {
    "reading cut": {"do": "cut", "after": 120, "times": 2},
    "link stolen": {"do": "detach", "condition": LINK_STOLEN, "after": 120, "times": 2},
}
"""Before any partition has been read to its end."""


def _faults() -> Iterator[Broken]:
    for role in ROLES:
        if role in MADE:
            yield from (Broken(name, role, MADE[role], {"of": "send", **o}) for name, o in OF_PUBLISHING.items())
        if role != ROLES[0]:
            log = MADE[ROLES[ROLES.index(role) - 1]]
            where = {"of": "receive", "group": FEED_GROUP}
            yield from (Broken(name, role, log, {**where, **o}) for name, o in OF_READING.items())


FAULTS = tuple(_faults())


def met(bank: Bank, fault: Broken) -> None:
    """Raises Failed."""
    ground = bank.ground
    assert isinstance(ground, Hubs), "faults of the wire are for hubs"
    with ground.faulty(**fault.order, hub=ground.hub(fault.log)) as taken:
        bank.run("a", fault.role, *behind(fault.role))
        if taken() != fault.order["times"]:
            raise Failed(f"the fault took {taken()} calls, and not {fault.order['times']}")
