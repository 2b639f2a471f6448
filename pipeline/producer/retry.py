"""How often, and how long, a send is tried. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from leasehold.common.clock import Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """retries_max: further tries after the first. delay_s: before the first of them; with `exponential` each is twice the last.

    try_timeout_s: how long one try may take, its link included.
    """

    retries_max: int = 3
    delay_s: float = 0.8
    delay_max_s: float = 60.0
    try_timeout_s: float = 60.0
    mode: Literal["exponential", "fixed"] = "exponential"

    def __post_init__(self) -> None:
        if self.retries_max < 0 or self.delay_s < 0 or self.delay_max_s < 0 or self.try_timeout_s <= 0:
            raise ValueError("a retry policy needs retries and delays of 0 or more, and a time for each try")

    def pause_s(self, retry: int) -> float:
        """Before retry number `retry`, from 1 on."""
        backoff = Backoff(first_s=self.delay_s, max_s=self.delay_max_s)
        return backoff.pause_s(1 if self.mode == "fixed" else retry, 0.0)
