"""Faults to order: each takes the next calls that fit it, until it has taken as many as it was ordered for."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from typing import NamedTuple

BUSY = "com.microsoft:server-busy"
OF = ("attach.sender", "attach.receiver", "send", "receive", "cbs", "management")
# What can be done to each kind of call, beside the ones that every kind takes.
EVERY = frozenset(("cut", "refuse", "throttle", "delay", "hang"))
ONLY = {
    "send": EVERY | {"cut_after", "lose_ack", "late_ack", "discard", "detach", "detach_after"},
    "receive": frozenset(("cut", "detach", "delay")),
}


class Call(NamedTuple):
    """of: one of OF. partition and group are empty where the call has none."""

    of: str
    hub: str = ""
    partition: str = ""
    group: str = ""


@dataclass(slots=True, kw_only=True)
class Fault:
    """hub, partition, group: of the calls it takes; None for all. after: calls that pass first. times: None for no end."""

    number: int = 0
    do: str
    of: str = "*"
    hub: str | None = None
    partition: str | None = None
    group: str | None = None
    after: int = 0
    times: int | None = None
    condition: str | None = None
    description: str = "A fault was ordered."
    delay_s: float = 0.0
    passed: int = 0
    taken: int = 0

    def __post_init__(self) -> None:
        kinds = fnmatch.filter(OF, self.of)
        if not kinds:
            raise ValueError(f"of: {self.of!r} fits none of {', '.join(OF)}")
        if not any(self.do in ONLY.get(kind, EVERY) for kind in kinds):
            raise ValueError(f"do: {self.do!r} cannot be done to {self.of}")
        if self.do == "throttle" and self.condition is None:
            self.condition, self.description = BUSY, "The request was terminated because the entity is being throttled."

    def fits(self, call: Call) -> bool:
        wanted = ((self.hub, call.hub), (self.partition, call.partition), (self.group, call.group))
        return (
            fnmatch.fnmatch(call.of, self.of)
            and self.do in ONLY.get(call.of, EVERY)
            and all(want is None or want.lower() == has.lower() for want, has in wanted)
        )


@dataclass(slots=True)
class Faults:
    ordered: list[Fault] = field(default_factory=list)
    _numbers: int = 0

    def order(self, fault: Fault) -> int:
        self._numbers += 1
        fault.number = self._numbers
        self.ordered.append(fault)
        return fault.number

    def heal(self, number: int | None = None) -> None:
        """All of them, if none is named."""
        self.ordered = [fault for fault in self.ordered if number not in (None, fault.number)]

    def taking(self, call: Call) -> Fault | None:
        """The fault that takes this call."""
        for fault in self.ordered:
            if not fault.fits(call) or fault.taken == fault.times:
                continue
            if fault.passed < fault.after:
                fault.passed += 1
                continue
            fault.taken += 1
            return fault
        return None

    def concern(self, of: str) -> bool:
        """Whether any fault may still take calls of that kind."""
        return any(fnmatch.fnmatch(of, fault.of) and fault.taken != fault.times for fault in self.ordered)
