"""What all parts of a host share: clock, intervals, randomness, log and statistics."""

from __future__ import annotations

import random
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.clock import Clock
from leasehold.leases.timing import Timing
from leasehold.service.stats import Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    clock: Clock
    timing: Timing
    rng: random.Random
    log: Log
    stats: Stats
