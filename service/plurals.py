"""Counted nouns in messages: "1 event", "1,000 events"."""

from __future__ import annotations


def counted(count: int, singular: str, plural: str | None = None) -> str:
    """plural: by default `singular` with an s."""
    return f"{count:,} {noun(count, singular, plural)}"


def noun(count: int, singular: str, plural: str | None = None) -> str:
    return singular if count == 1 else plural or f"{singular}s"
