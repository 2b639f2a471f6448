"""What happens to a host in one run of a case, and what runs a case needs. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Literal, get_args

Recut = Literal["single events", "whole", "random", "random again"]
RECUTS: tuple[Recut, ...] = get_args(Recut)


@dataclass(frozen=True, slots=True)
class Disturbance:
    """again: how events are cut into batches for the process that takes a killed host's name."""

    kind: Literal["none", "kill", "lost answer", "late write"]
    point: str = ""
    nth: int = 1
    again: Recut = "random"

    def __str__(self) -> str:
        nth = f" (number {self.nth})" if self.nth > 1 else ""
        again = {"single events": " with batches of one event", "whole": " with the rest as one batch"}.get(
            self.again, ""
        )
        return {
            "none": "undisturbed",
            "kill": f"killed at '{self.point}'{nth}, and started again{again}",
            "lost answer": f"the answer to a write is lost{nth}",
            "late write": f"a second host takes the leases, and then a write of the first arrives{nth}",
        }[self.kind]


UNDISTURBED = Disturbance("none")


def disturbances(
    reached: Mapping[str, int], seed: int, recuts: Sequence[Recut] = RECUTS, *, each: int = 1
) -> Iterator[Disturbance]:
    """reached: crash points, and how often an undisturbed run reaches each. each: how many kills there are at each of them.

    A handler sees events again in other batches, so each kind of batches is tried at each point. For sinks that keep
    positions, the kinds take turns.
    """
    rng = random.Random(seed)  # noqa: S311 - repeatable, no secret
    kinds = cycle(recuts)
    for point, times in reached.items():
        for again in islice(kinds, each):
            yield Disturbance("kill", point, rng.randint(1, times), again)
    writes = reached.get("before write", 0)
    if writes:
        yield Disturbance("lost answer", nth=rng.randint(1, writes))
        yield Disturbance("late write", nth=rng.randint(1, writes))
