"""Pauses between attempts: how they grow, and what bounds them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.common.clock import Backoff, retry_after_s
from leasehold.leases.errors import StoreConflict, StoreUnavailable
from leasehold.leases.timing import Timing

BACKOFF = Backoff(first_s=1.0, max_s=13.0)


def test_pauses_double_up_to_their_maximum() -> None:
    assert [BACKOFF.pause_s(failures, 0.0) for failures in range(1, 7)] == [1, 2, 4, 8, 13, 13]


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_jitter_takes_off_at_most_its_share(failures: int, jitter: float) -> None:
    longest = BACKOFF.pause_s(failures, 0.0)
    assert longest / 2 <= BACKOFF.pause_s(failures, jitter) <= longest


@given(st.integers(1, 100), st.floats(0, 1), st.floats(0, 1e4))
def test_what_the_service_wants_is_never_undercut(failures: int, jitter: float, wanted: float) -> None:
    assert BACKOFF.pause_s(failures, jitter, wanted) >= wanted


def test_the_container_is_tried_again_after_a_sixteenth_of_a_renewal_at_first_and_a_balance_interval_at_last() -> None:
    timing = Timing()
    assert timing.backoff.pause_s(1, 0.0) == timing.handoff_poll_s
    assert timing.backoff.pause_s(99, 0.0) == timing.balance_s


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (StoreUnavailable("away", retry_after_s=3.0), 3.0),
        (StoreUnavailable("away"), 0.0),
        (StoreConflict("changed"), 0.0),
    ],
)
def test_only_some_errors_say_how_long_to_wait(error: Exception, wanted: float) -> None:
    assert retry_after_s(error) == wanted
