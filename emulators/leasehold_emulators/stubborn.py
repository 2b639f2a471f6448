"""Failures at random that last: whatever met one meets it again, a few times in a row."""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Stubborn:
    left: dict[Hashable, int] = field(default_factory=dict)

    def fails(self, what: Hashable, rng: random.Random, *, share: float, times: int) -> bool:
        """A share of all. times: how often each of them fails before it passes; with 1 each attempt is drawn for itself."""
        if what in self.left:
            self.left[what] -= 1
            if not self.left[what]:
                del self.left[what]
                return False
            return True
        fails = rng.random() < share
        if fails and times > 1:
            self.left[what] = times
        return fails
