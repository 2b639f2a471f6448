"""Counted nouns in messages."""

from __future__ import annotations

from leasehold.service.texts import counted, noun


def test_one_is_singular_and_everything_else_is_plural() -> None:
    assert [counted(count, "event") for count in (0, 1, 1000)] == ["0 events", "1 event", "1,000 events"]
    assert [noun(count, "lease is", "leases are") for count in (1, 2)] == ["lease is", "leases are"]
