"""Keeps one lease renewed until it is lost.

A renewal that fails for any other reason is retried with the old ETag. While its trust has expired, the owner is
suspended, not dead, and either resumes or learns that it lost. Only a successful write extends trust.

A lease that is judged by its owner's session needs no renewals: it is won again, by one write, after each lapse of the
session.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from leasehold.common.clock import Clock
from leases.errors import StoreConflict, StoreError, StoreUnavailable
from leases.keeper import OwnedLease
from leases.session import WON_AGAIN_PER_S
from leases.timing import Timing


async def keep_renewed(
    owned: OwnedLease,
    *,
    clock: Clock,
    timing: Timing,
    rng: random.Random,
    failed: Callable[[StoreError, int], None] = lambda error, attempt: None,
    tried: Callable[[float, StoreError | None], None] = lambda took_s, error: None,
) -> None:
    """Never returns: it is cancelled, or raises LeaseLost.

    - tried: called after every attempt, with its error if it failed.
    - failed: called after a failed attempt, with the number of failures in a row.
    """
    attempt, is_settled = 0, False
    while True:
        renewed_at = owned.renewed_at
        jitter = rng.random()
        if (session := owned.session) is not None and attempt == 0:
            await session.wait_until_must_win(owned.won_term)
            await session.turn.wait(WON_AGAIN_PER_S)
            if not session.must_win(owned.won_term):
                continue  # a checkpoint has won it again meanwhile, or there was another lapse
        else:
            pause = pause_before(renewed_at, clock.monotonic(), attempt, timing, jitter, is_settled=is_settled)
            await clock.sleep(pause)
            is_settled = attempt == 0
            if owned.renewed_at > renewed_at:
                attempt = 0
                continue  # a checkpoint has renewed meanwhile
        began = clock.monotonic()
        try:
            await owned.renew()
            attempt = 0
            tried(clock.monotonic() - began, None)
        except StoreError as error:
            attempt += 1
            failed(error, attempt)
            tried(clock.monotonic() - began, error)
            if isinstance(error, StoreUnavailable) and error.retry_after_s is not None:
                await clock.sleep(min(error.retry_after_s, timing.renew_s))
            elif isinstance(error, StoreConflict):
                attempt = max(attempt, 3)  # another writer writes in a loop: give way


def pause_before(
    renewed_at: float, now: float, attempt: int, timing: Timing, jitter: float, *, is_settled: bool = False
) -> float:
    """Seconds until the next attempt.

    Jitter (0..1) takes off up to a half before the first renewal and before the first one after a failure, so that a
    host's leases do not all renew together. From then on they are spread out, and more jitter would only cost writes.
    """
    if attempt == 0:
        return max(0.0, renewed_at + timing.renew_s * (1.0 if is_settled else 1 - 0.5 * jitter) - now)
    return timing.renewal_backoff.pause_s(attempt, jitter)
