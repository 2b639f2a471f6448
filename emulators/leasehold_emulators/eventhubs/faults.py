"""Faults to order: each takes the next calls that fit it, until it has taken as many as it was ordered for."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from pydantic import Field
from pydantic import dataclasses as checked

from leasehold_emulators.orders import STRICT, Count, Name, Positive, Seconds, check_fault

BUSY = "com.microsoft:server-busy"
OF = ("attach.sender", "attach.receiver", "send", "receive", "cbs", "management")
# The faults of a kind of call: those in ONLY if it is listed there, otherwise EVERY.
EVERY = frozenset(("cut", "refuse", "throttle", "delay", "hang"))
ONLY = {
    "send": EVERY | {"cut_after", "lose_ack", "late_ack", "discard", "detach", "detach_after"},
    "receive": frozenset(("cut", "detach", "delay")),
}
KINDS = tuple(sorted(EVERY.union(*ONLY.values())))
Condition = Annotated[str, Field(pattern=r"^[!-~]{1,255}$")]
"""A symbol of AMQP."""


class Call(NamedTuple):
    """of: one of OF. partition and group are empty if the call has none."""

    of: str
    hub: str = ""
    partition: str = ""
    group: str = ""


@checked.dataclass(slots=True, kw_only=True, config=STRICT)
class Fault:
    """hub, partition, group: of the calls it takes; None for all. after: calls that pass first. times: None for no limit."""

    do: str
    of: str = "*"
    hub: Name | None = None
    partition: Name | None = None
    group: Name | None = None
    after: Count = 0
    times: Positive | None = None
    condition: Condition | None = None
    description: Annotated[str, Field(max_length=1024)] = "A fault was ordered."
    delay_s: Seconds = 0.0
    number: int = field(default=0, init=False)
    passed: int = field(default=0, init=False)
    taken: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        check_fault(self, KINDS, OF)
        doable = sorted(set().union(*(ONLY.get(kind, EVERY) for kind in fnmatch.filter(OF, self.of))))
        if self.do not in doable:
            raise ValueError(f"do: {self.do!r} cannot be done to {self.of}: use one of {', '.join(doable)}")
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
        """Remove a fault, or all of them if no number is given."""
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
