"""Random failures that last: what has failed once fails again, a few times in a row."""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Stubborn:
    left: dict[Hashable, int] = field(default_factory=dict)

    def fails(self, what: Hashable, rng: random.Random, *, share: float, times: int) -> bool:
        """share: of those that fail. times: how often each fails before it passes; 1 draws every attempt independently."""
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
