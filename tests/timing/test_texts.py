"""How long it takes to mask secrets in a text."""

from __future__ import annotations

import time

import pytest

from leasehold.service.texts import redacted


def seconds_for(text: str) -> float:
    began = time.process_time()
    redacted(text)
    return time.process_time() - began


@pytest.mark.parametrize(
    "piece", ["a.", "a-", "a://", "a://b:", "://", "a:b@", "password", "password=", "password='", "sig=\\'", "basic "]
)
def test_an_events_text_takes_as_long_as_its_length_and_not_its_square(piece: str) -> None:
    """An error may quote it, and while it is masked no lease is renewed."""
    short, long = (min(seconds_for(piece * (size // len(piece))) for _ in range(3)) for size in (50_000, 400_000))
    assert long < 24 * short + 0.05
