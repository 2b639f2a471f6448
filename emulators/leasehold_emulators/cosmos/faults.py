"""Faults to order: rules for what happens to which requests. This module decides which one takes a request; the server acts."""

from __future__ import annotations

import fnmatch
import random
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import Field
from pydantic import dataclasses as checked

from leasehold_emulators.cosmos.call import REQUESTS, Call, Reply, refusal
from leasehold_emulators.cosmos.refused import THROTTLED, Refused
from leasehold_emulators.orders import STRICT, Count, Name, Positive, Seconds, Status, check_fault, fault_of
from leasehold_emulators.stubborn import Stubborn

KINDS = ("throttle", "fail", "cut", "delay", "lose_reply", "lag")


@checked.dataclass(slots=True, kw_only=True, config=STRICT)
class Fault:
    """A rule for requests, and what happens to them.

    do: throttle (429), fail (`status`, `substatus`), delay (`delay_s`), cut (nothing is done, the connection drops), or
    lose_reply (done, then the connection drops). For feeds also lag: a replica that is `lsns` behind answers with its own ETag.
    If it has nothing newer, its answer is 304, or with `again` 200 and its last transaction.

    - of: kinds of request (`document.*`, `documents.*`, `feed.*`, `*`).
    - container, range_id, id: if given, only requests for these. The container is `name` or `database/name`.
    - page_min: only requests for pages of at least this many results.
    - times: how many it takes, None for no limit.
    - share: the share of matching requests that it takes. in_a_row: how often it takes the same request before that one passes.
    - after: how many matching requests pass first.
    """

    do: str
    of: str = "*"
    container: Name | None = None
    range_id: Name | None = None
    id: Name | None = None
    page_min: Count = 0
    times: Positive | None = None
    share: Annotated[float, Field(ge=0, le=1)] = 1.0
    in_a_row: Positive = 1
    after: Count = 0
    status: Status = 503
    substatus: Count = 0
    retry_after_ms: Annotated[int, Field(ge=0, le=86_400_000)] = 100
    delay_s: Seconds = 0.0
    lsns: Positive = 1
    again: bool = False
    number: int = field(default=0, init=False)
    taken: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        check_fault(self, KINDS, REQUESTS)

    def fits(self, call: Call, range_id: str | None) -> bool:
        return (
            self.times != 0
            and fnmatch.fnmatchcase(call.kind, self.of)
            and self.container in (None, *containers_of(call))
            and self.range_id in (None, range_id)
            and self.id in (None, call.path[-1] if call.path else None)
            and call.limit >= self.page_min
        )

    @property
    def reply(self) -> Reply:
        if self.do == "throttle":
            headers = {"x-ms-retry-after-ms": str(self.retry_after_ms)}
            return refusal(Refused(429, "The request rate is too large.", THROTTLED, headers))
        return refusal(Refused(self.status, "A fault was ordered.", self.substatus))


def container_of(call: Call) -> str | None:
    return call.path[3] if len(call.path) > 3 and call.path[2] == "colls" else None


def containers_of(call: Call) -> tuple[str, ...]:
    """The names of the call's container, without and with its database."""
    name = container_of(call)
    return () if name is None else (name, f"{call.path[1]}/{name}")


@dataclass(slots=True)
class Faults:
    """All faults, in the order of their creation: the first that fits takes a request. The seed makes shares repeatable."""

    rng: random.Random = field(default_factory=lambda: random.Random(1))
    _stubborn: dict[int, Stubborn] = field(default_factory=dict)
    _all: dict[int, Fault] = field(default_factory=dict)
    _made: int = 0

    def add(self, /, **what: Any) -> int:
        fault = fault_of(Fault, what)
        self._made += 1
        fault.number = self._made
        self._all[fault.number] = fault
        return fault.number

    def numbers(self) -> list[int]:
        return list(self._all)

    def remove(self, number: int | None = None) -> None:
        if number is None:
            self._all.clear()
        else:
            self._all.pop(number, None)

    def listed(self) -> list[dict[str, Any]]:
        return [asdict(fault) for fault in self._all.values()]

    def taking(self, call: Call, range_id: str | None) -> Fault | None:
        for fault in self._all.values():
            if not fault.fits(call, range_id):
                continue
            if fault.after > 0:
                fault.after -= 1
                continue
            if fault.share < 1 and not self._is_of_share(fault, call):
                continue
            fault.taken += 1
            if fault.times is not None:
                fault.times -= 1
            return fault
        return None

    def _is_of_share(self, fault: Fault, call: Call) -> bool:
        stubborn = self._stubborn.setdefault(fault.number, Stubborn())
        return stubborn.fails((*call.path, call.body), self.rng, share=fault.share, times=fault.in_a_row)
